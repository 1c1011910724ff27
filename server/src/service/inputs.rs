//! What can be told of a request without asking the host: names, opens, bounds, roles.

use super::access::Names;
use crate::records::Client;
use crate::session::Opens;
use leasefs_protocol::limits::{
    MAX_BATCH, MAX_PAYLOAD, MAX_SYMLINK, MAX_XATTR_NAME, MAX_XATTR_VALUE,
};
use leasefs_protocol::request::{Make, O_TRUNC, WriteAt};
use leasefs_protocol::{FileKind, Name, RawName, Refusal, Request};
use leasefs_store::{OpenFile, Store};
use std::sync::Arc;

/// A request's arguments, checked.
#[derive(Debug, Default)]
pub struct Inputs {
    /// Its names.
    pub names: Names,
    /// Its open; of `CopyRange`, the one written to.
    pub open: Option<Arc<OpenFile>>,
    /// Of `CopyRange`, the one read from.
    pub from: Option<Arc<OpenFile>>,
}

/// What an open may do with the bytes; 0 is reading only.
pub(super) const O_ACCMODE: u32 = 3;
/// Largest file offset.
const MAX_OFFSET: u64 = i64::MAX as u64;

/// Errno values the host's kernel gives for the same arguments.
mod errno {
    pub const ENOENT: u16 = libc::ENOENT as u16;
    pub const E2BIG: u16 = libc::E2BIG as u16;
    pub const ENXIO: u16 = libc::ENXIO as u16;
    pub const ERANGE: u16 = libc::ERANGE as u16;
    pub const EISDIR: u16 = libc::EISDIR as u16;
    pub const ENOTDIR: u16 = libc::ENOTDIR as u16;
}

/// Checks a request.
///
/// # Errors
/// What the client is told.
pub fn inputs(
    store: &Store,
    client: &Client,
    opens: &Opens,
    request: &Request,
    payload: usize,
) -> Result<Inputs, Refusal> {
    role(client, request)?;
    bounds(request, payload)?;
    let mut inputs = Inputs::default();
    for object in request.handles() {
        store.check(object)?;
    }
    match request {
        Request::Lookup { name, .. }
        | Request::Make { name, .. }
        | Request::Unlink { name, .. }
        | Request::Rmdir { name, .. }
        | Request::Create { name, .. }
        | Request::Link { name, .. } => inputs.names.name = Some(Name::try_from(name)?),
        Request::Rename { name, new_name, .. } => {
            inputs.names.name = Some(Name::try_from(name)?);
            inputs.names.new_name = Some(Name::try_from(new_name)?);
        }
        Request::Commit { open, .. } | Request::Seek { open, .. } => {
            inputs.open = Some(opens.get(*open)?);
        }
        Request::Read { open, .. } => inputs.open = Some(readable(opens.get(*open)?)?),
        Request::Write { open, .. } | Request::Fallocate { open, .. } => {
            inputs.open = Some(writable(opens.get(*open)?)?);
        }
        Request::ReadDir { open, .. } => inputs.open = Some(listable(opens.get(*open)?)?),
        Request::CopyRange { from, to, .. } => {
            inputs.from = Some(readable(opens.get(*from)?)?);
            inputs.open = Some(writable(opens.get(*to)?)?);
        }
        Request::SetAttr { open, .. } => {
            inputs.open = open.map(|open| opens.get(open)).transpose()?;
        }
        _ => (),
    }
    Ok(inputs)
}

fn readable(open: Arc<OpenFile>) -> Result<Arc<OpenFile>, Refusal> {
    match (open.kind(), open.reads()) {
        (FileKind::Directory, _) => Err(Refusal::Host(errno::EISDIR)),
        (_, true) => Ok(open),
        (_, false) => Err(Refusal::BadOpen),
    }
}

fn writable(open: Arc<OpenFile>) -> Result<Arc<OpenFile>, Refusal> {
    open.writes().then_some(open).ok_or(Refusal::BadOpen)
}

fn listable(open: Arc<OpenFile>) -> Result<Arc<OpenFile>, Refusal> {
    match open.kind() {
        FileKind::Directory => Ok(open),
        _ => Err(Refusal::Host(errno::ENOTDIR)),
    }
}

fn role(client: &Client, request: &Request) -> Result<(), Refusal> {
    let changes = match request {
        Request::Open { flags, .. } => flags & (O_ACCMODE | O_TRUNC) != 0,
        request => request.is_change(),
    };
    match client.read_only && changes {
        true => Err(Refusal::ReadOnly),
        false => Ok(()),
    }
}

fn bounds(request: &Request, payload: usize) -> Result<(), Refusal> {
    match request {
        Request::Read { offset, len, .. } => {
            range(*offset, u64::from(*len))?;
            at_most(*len as usize, MAX_PAYLOAD, Refusal::Invalid)
        }
        Request::Write {
            at: WriteAt::Offset(offset),
            ..
        } => range(*offset, payload as u64),
        Request::Fallocate { offset, len, .. } => range(*offset, *len),
        Request::Seek { offset, .. } if *offset > MAX_OFFSET => Err(Refusal::Host(errno::ENXIO)),
        Request::CopyRange {
            from_offset,
            to_offset,
            len,
            ..
        } => {
            range(*from_offset, *len)?;
            range(*to_offset, *len)
        }
        Request::Close { opens } => at_most(opens.len(), MAX_BATCH, Refusal::Invalid),
        Request::Make {
            make: Make::Symlink { target },
            ..
        } => symlink(target),
        Request::SetXattr { name, .. } => {
            at_most(payload, MAX_XATTR_VALUE, Refusal::Host(errno::E2BIG))?;
            xattr_name(name)
        }
        Request::GetXattr { name, .. } | Request::RemoveXattr { name, .. } => xattr_name(name),
        _ => Ok(()),
    }
}

fn range(offset: u64, len: u64) -> Result<(), Refusal> {
    match offset.checked_add(len) {
        Some(end) if end <= MAX_OFFSET => Ok(()),
        _ => Err(Refusal::TooBig),
    }
}

fn at_most(found: usize, limit: usize, refusal: Refusal) -> Result<(), Refusal> {
    match found > limit {
        true => Err(refusal),
        false => Ok(()),
    }
}

fn symlink(target: &RawName) -> Result<(), Refusal> {
    if target.0.is_empty() {
        return Err(Refusal::Host(errno::ENOENT));
    }
    at_most(target.0.len(), MAX_SYMLINK, Refusal::NameTooLong)?;
    no_nul(target)
}

fn xattr_name(name: &RawName) -> Result<(), Refusal> {
    if name.0.is_empty() || name.0.len() > MAX_XATTR_NAME {
        return Err(Refusal::Host(errno::ERANGE));
    }
    no_nul(name)
}

fn no_nul(text: &RawName) -> Result<(), Refusal> {
    match text.0.contains(&0) {
        true => Err(Refusal::Invalid),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasefs_protocol::OpenId;
    use leasefs_protocol::request::Fill;

    #[test]
    fn ranges_beyond_the_largest_offset_are_too_big() {
        let read = |offset, len| Request::Read {
            open: OpenId(1),
            offset,
            len,
            fill: Fill::Nothing,
        };
        assert_eq!(bounds(&read(MAX_OFFSET - 1, 1), 0), Ok(()));
        assert_eq!(bounds(&read(MAX_OFFSET, 1), 0), Err(Refusal::TooBig));
        assert_eq!(bounds(&read(u64::MAX, 1), 0), Err(Refusal::TooBig));
        let too_long = read(0, MAX_PAYLOAD as u32 + 1);
        assert_eq!(bounds(&too_long, 0), Err(Refusal::Invalid));
    }

    #[test]
    fn a_symlink_target_is_neither_empty_nor_over_path_max_nor_cut_by_nul() {
        let make = |target: &[u8]| symlink(&RawName(target.to_vec()));
        assert_eq!(make(b""), Err(Refusal::Host(2)));
        assert_eq!(make(&[b'x'; MAX_SYMLINK]), Ok(()));
        assert_eq!(make(&[b'x'; MAX_SYMLINK + 1]), Err(Refusal::NameTooLong));
        assert_eq!(make(b"a\0b"), Err(Refusal::Invalid));
    }

    #[test]
    fn a_read_only_client_may_neither_change_nor_open_for_writing() {
        let client = Client {
            key: leasefs_protocol::KeyHash::default(),
            name: String::new(),
            read_only: true,
            identity: leasefs_protocol::control::IdentityPolicy::Trust,
            acts_as: None,
            border: None,
        };
        let object = leasefs_protocol::Handle::new(&[1]).expect("one byte");
        let open = |flags| Request::Open { object, flags };
        assert_eq!(role(&client, &open(0)), Ok(()));
        assert_eq!(role(&client, &open(1)), Err(Refusal::ReadOnly));
        assert_eq!(role(&client, &open(O_TRUNC)), Err(Refusal::ReadOnly));
        let remove = Request::RemoveXattr {
            object,
            name: RawName(b"user.a".to_vec()),
        };
        assert_eq!(role(&client, &remove), Err(Refusal::ReadOnly));
    }
}
