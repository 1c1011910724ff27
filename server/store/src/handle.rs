//! Handles and tokens: what the server gives out and recognises again.
//!
//! A handle is export id (8 bytes) ‖ type (1) ‖ host handle (up to 39) ‖ MAC (16): HMAC-SHA256 under
//! a key of the state directory, truncated. Only objects reached from the export's root get one, so
//! the MAC alone keeps everything else of the file system out of reach.

use leasefs_protocol::limits::{MAX_HANDLE, MAX_HOST_HANDLE};
use leasefs_protocol::{ExportId, Handle, Refusal};
use ring::hmac;
use std::fmt;

const EXPORT: usize = 8;
const MAC: usize = 16;
const _: () = assert!(EXPORT + 1 + MAX_HOST_HANDLE + MAC == MAX_HANDLE);

/// What a MAC is for; no handle can pass for a token.
const HANDLES: &[u8] = b"leasefs handle\0";
const CONFINED: &[u8] = b"leasefs confined handle\0";
const TOKENS: &[u8] = b"leasefs open token\0";

/// Key of the MACs of handles and open tokens; kept in the state directory.
pub struct MacKey(hmac::Key);

impl MacKey {
    /// A key of these random bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
    }
}

impl fmt::Debug for MacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MacKey")
    }
}

/// An object's identity on the host: equal exactly for the same object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct HostId {
    /// Type of the host's handle; 0 for one made of inode number and birth time.
    pub kind: u8,
    len: u8,
    bytes: [u8; MAX_HOST_HANDLE],
}

impl HostId {
    /// `None` if it doesn't fit into a handle.
    pub fn new(kind: i32, bytes: &[u8]) -> Option<Self> {
        let mut id = Self {
            kind: u8::try_from(kind).ok()?,
            len: u8::try_from(bytes.len()).ok()?,
            bytes: [0; MAX_HOST_HANDLE],
        };
        id.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(id)
    }

    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// Makes and recognises handles and tokens of one export.
pub(crate) struct Sealer {
    key: hmac::Key,
    export: ExportId,
}

impl Sealer {
    pub fn new(key: &MacKey, export: ExportId) -> Self {
        Self {
            key: key.0.clone(),
            export,
        }
    }

    fn mac(&self, purpose: &[u8], parts: &[&[u8]]) -> [u8; MAC] {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(purpose);
        parts.iter().for_each(|part| context.update(part));
        let mut mac = [0; MAC];
        mac.iter_mut()
            .zip(context.sign().as_ref())
            .for_each(|(to, from)| *to = *from);
        mac
    }

    /// The handle of an object.
    pub fn seal(&self, id: &HostId) -> Handle {
        let mut bytes = Vec::with_capacity(MAX_HANDLE);
        bytes.extend_from_slice(&self.export.0);
        bytes.push(id.kind);
        bytes.extend_from_slice(id.bytes());
        let mac = self.mac(HANDLES, &[&bytes]);
        bytes.extend_from_slice(&mac);
        Handle::new(&bytes).expect("the parts fit, as asserted at compile time")
    }

    /// The object of a handle that `seal` made.
    pub fn unseal(&self, handle: &Handle) -> Result<HostId, Refusal> {
        let body = self.verify(HANDLES, &[], handle.as_bytes())?;
        let body = body.strip_prefix(&self.export.0[..]);
        let (kind, host) = body.and_then(<[u8]>::split_first).ok_or(Refusal::Stale)?;
        HostId::new(i32::from(*kind), host).ok_or(Refusal::Stale)
    }

    /// The form of a handle that `seal` made which is good in this context only.
    pub fn seal_within(&self, context: &[u8], handle: &Handle) -> Handle {
        let body = handle.as_bytes();
        let body = body
            .get(..body.len().saturating_sub(MAC))
            .unwrap_or_default();
        let mac = self.mac(CONFINED, &[context, body]);
        replaced(body, &mac)
    }

    /// The handle of which `seal_within` made this form for this context.
    pub fn unseal_within(&self, context: &[u8], form: &Handle) -> Result<Handle, Refusal> {
        let body = self.verify(CONFINED, &[context], form.as_bytes())?;
        Ok(replaced(body, &self.mac(HANDLES, &[body])))
    }

    /// `body` with a MAC behind it that also binds `context`.
    pub fn seal_token(&self, context: &[u8], mut body: Vec<u8>) -> Vec<u8> {
        let mac = self.mac(TOKENS, &[&self.export.0, context, &body]);
        body.extend_from_slice(&mac);
        body
    }

    /// The body of a token that `seal_token` made for this context.
    pub fn unseal_token<'a>(&self, context: &[u8], token: &'a [u8]) -> Result<&'a [u8], Refusal> {
        self.verify(TOKENS, &[&self.export.0, context], token)
            .map_err(|_| Refusal::BadOpen)
    }

    fn verify<'a>(
        &self,
        purpose: &[u8],
        context: &[&[u8]],
        sealed: &'a [u8],
    ) -> Result<&'a [u8], Refusal> {
        let (body, found) = sealed.split_last_chunk::<MAC>().ok_or(Refusal::Stale)?;
        let mut parts = context.to_vec();
        parts.push(body);
        let expected = self.mac(purpose, &parts);
        // Constant time: no early exit, whatever differs.
        let differ = expected
            .iter()
            .zip(found)
            .fold(0, |differ, (a, b)| differ | (a ^ b));
        match std::hint::black_box(differ) {
            0 => Ok(body),
            _ => Err(Refusal::Stale),
        }
    }
}

/// A handle's body with this MAC behind it.
fn replaced(body: &[u8], mac: &[u8; MAC]) -> Handle {
    Handle::new(&[body, mac].concat()).expect("as long as the handle the body is from")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealer(key: u8, export: u8) -> Sealer {
        Sealer::new(&MacKey::new([key; 32]), ExportId([export; 8]))
    }

    fn id() -> HostId {
        HostId::new(1, b"inode-gen").expect("fits")
    }

    #[test]
    fn a_handle_names_its_object_again() {
        let handle = sealer(1, 1).seal(&id());
        assert_eq!(sealer(1, 1).unseal(&handle), Ok(id()));
    }

    #[test]
    fn the_largest_host_handle_fits() {
        let id = HostId::new(255, &[9; MAX_HOST_HANDLE]).expect("fits");
        let handle = sealer(1, 1).seal(&id);
        assert_eq!(sealer(1, 1).unseal(&handle), Ok(id));
        assert!(HostId::new(1, &[9; MAX_HOST_HANDLE + 1]).is_none());
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_stale() {
        let handle = sealer(1, 1).seal(&id());
        let bytes = handle.as_bytes();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut forged = bytes.to_vec();
                forged[at] ^= 1 << bit;
                let forged = Handle::new(&forged).expect("fits");
                assert_eq!(sealer(1, 1).unseal(&forged), Err(Refusal::Stale));
            }
            let short = Handle::new(&bytes[..at]).expect("fits");
            assert_eq!(sealer(1, 1).unseal(&short), Err(Refusal::Stale));
        }
    }

    #[test]
    fn handles_of_another_export_or_key_are_stale() {
        let handle = sealer(1, 1).seal(&id());
        assert_eq!(sealer(1, 2).unseal(&handle), Err(Refusal::Stale));
        assert_eq!(sealer(2, 1).unseal(&handle), Err(Refusal::Stale));
    }

    #[test]
    fn a_confined_form_is_good_in_its_context_alone_and_no_handle_elsewhere() {
        let handle = sealer(1, 1).seal(&id());
        let form = sealer(1, 1).seal_within(b"one", &handle);
        assert_eq!(sealer(1, 1).unseal_within(b"one", &form), Ok(handle));
        let stale = Err(Refusal::Stale);
        assert_eq!(sealer(1, 1).unseal_within(b"two", &form), stale);
        assert_eq!(sealer(1, 1).unseal_within(b"one", &handle), stale);
        assert_eq!(sealer(1, 1).unseal(&form), Err(Refusal::Stale));
        let empty = Handle::new(b"").expect("fits");
        assert_eq!(sealer(1, 1).unseal_within(b"one", &empty), stale);
    }

    #[test]
    fn a_token_is_worth_nothing_in_another_context() {
        let token = sealer(1, 1).seal_token(b"session a", b"body".to_vec());
        assert_eq!(
            sealer(1, 1).unseal_token(b"session a", &token),
            Ok(&b"body"[..])
        );
        let other = sealer(1, 1).unseal_token(b"session b", &token);
        assert_eq!(other, Err(Refusal::BadOpen));
    }
}
