//! Between the protocol's types and fuser's.

use fuser::{Errno, FileAttr, FileType, INodeNo, TimeOrNow};
use leasefs_client::NodeId;
use leasefs_client::call::{Listed, Shown};
use leasefs_protocol::{FileKind, Refusal, SetTime, Timestamp};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The node id of a request.
pub fn node_id(ino: INodeNo) -> NodeId {
    NodeId(ino.0)
}

/// The errno an application sees.
pub fn errno(refusal: Refusal) -> Errno {
    Errno::from_i32(refusal.errno())
}

/// The kind as fuser names it.
pub fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// Attributes as the kernel is told them.
pub fn file_attr(shown: &Shown) -> FileAttr {
    let attr = &shown.attr;
    FileAttr {
        ino: INodeNo(shown.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(attr.kind),
        perm: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: device_number(attr.rdev),
        blksize: attr.blksize,
        flags: 0,
    }
}

/// What the kernel takes from attributes for an entry of a listing.
pub fn name_only(entry: &Listed<'_>) -> FileAttr {
    FileAttr {
        ino: INodeNo(entry.ino),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: file_type(entry.kind),
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// A device number as FUSE carries it: 12 bits of major, 20 of minor (`new_encode_dev`).
fn device_number((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12)
}

/// The device number of MKNOD, as `(major, minor)`.
pub fn device_parts(encoded: u32) -> (u32, u32) {
    let major = (encoded & 0xfff00) >> 8;
    let minor = (encoded & 0xff) | ((encoded >> 12) & 0xfff00);
    (major, minor)
}

/// Saturates where `SystemTime` ends (the kernel's own limits are narrower).
fn system_time(time: Timestamp) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(time.nanos));
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let seconds = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    seconds
        .and_then(|seconds| seconds.checked_add(nanos))
        .unwrap_or(UNIX_EPOCH)
}

/// The time of SETATTR.
///
/// fuser subtracts the nanoseconds of times before 1970 where it should add them; it is
/// undone here: the distance from the epoch is made of the parts the kernel sent.
pub fn set_time(time: TimeOrNow) -> SetTime {
    let TimeOrNow::SpecificTime(time) = time else {
        return SetTime::Now;
    };
    let (seconds, nanos) = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => (
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            since.subsec_nanos(),
        ),
        Err(before) => {
            let until = before.duration();
            let seconds = i64::try_from(until.as_secs()).map_or(i64::MIN, |seconds| -seconds);
            (seconds, until.subsec_nanos())
        }
    };
    SetTime::At(Timestamp { seconds, nanos })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_way_to_the_kernel_and_back() {
        for rdev in [(0, 0), (1, 2), (8, 17), (0xfff, 0xfffff), (259, 300)] {
            assert_eq!(device_parts(device_number(rdev)), rdev);
        }
    }

    #[test]
    fn times_before_1970_keep_their_fraction() {
        let half_before = Timestamp {
            seconds: -1,
            nanos: 500_000_000,
        };
        let expected = UNIX_EPOCH - Duration::from_millis(500);
        assert_eq!(system_time(half_before), expected);
    }

    #[test]
    fn a_time_to_set_is_what_the_kernel_sent() {
        // What fuser makes of (-1 s, 500 ms).
        let from_fuser = UNIX_EPOCH - Duration::new(1, 500_000_000);
        let expected = Timestamp {
            seconds: -1,
            nanos: 500_000_000,
        };
        assert_eq!(
            set_time(TimeOrNow::SpecificTime(from_fuser)),
            SetTime::At(expected)
        );
        assert_eq!(set_time(TimeOrNow::Now), SetTime::Now);
    }
}
