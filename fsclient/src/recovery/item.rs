//! What is kept: as its writer's daemon hands it over, and as it is described on the disk.

use super::error::RecoveryError;
use super::id::RecoveryId;
use super::user::User;
use bytes::Bytes;
use leasefs_protocol::latency::millis;
use leasefs_protocol::limits::{MAX_RECOVERY_PATH, MAX_RECOVERY_RANGES};
use leasefs_protocol::{Handle, escaped, printable};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Offsets of files are signed on Linux.
const END_OF_FILES: u64 = i64::MAX as u64;

/// Buffered data that can't be brought in.
#[derive(Clone, Debug)]
pub struct Lost {
    /// The mount's source, `HOST:PORT:/SUBDIR`.
    pub source: String,
    /// The file's path below the mount's root when it was written, as far as it is known.
    pub path: Option<PathBuf>,
    /// The file.
    pub object: Handle,
    /// Who wrote it, if that is known.
    pub writer: Option<User>,
    /// Why it can't be brought in.
    pub reason: Reason,
    /// The wall clock's time of giving up.
    pub time: SystemTime,
    /// The file's size as its writer saw it, in bytes.
    pub size: u64,
    /// Offset and bytes; where they overlap a later one covers an earlier one.
    pub extents: Vec<(u64, Bytes)>,
}

/// Why data was not brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Reason {
    /// The file was changed by another mount while this one was cut off.
    ChangedElsewhere,
    /// The mount ended before the server was reached.
    Unreachable,
    /// The server refused it.
    Refused {
        /// Linux errno.
        errno: i32,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChangedElsewhere => f.write_str("changed elsewhere meanwhile"),
            Self::Unreachable => f.write_str("the server could not be reached"),
            Self::Refused { errno } => {
                let error = std::io::Error::from_raw_os_error(*errno);
                write!(f, "the server refused it: {error}")
            }
        }
    }
}

/// A run of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteRange {
    /// Where it begins.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
}

impl ByteRange {
    /// Where it ends: the offset after its last byte.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// What is kept, without its bytes: `item.json`, and `fsclient recover list --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Its id.
    pub id: RecoveryId,
    /// The mount's source, `HOST:PORT:/SUBDIR`.
    pub source: String,
    /// The file's path below the mount's root, if it is known.
    #[serde(with = "path_bytes")]
    pub path: Option<PathBuf>,
    /// The file's handle, in hexadecimal.
    pub object: String,
    /// Who wrote it, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writer: Option<User>,
    /// Why it is here.
    #[serde(flatten)]
    pub reason: Reason,
    /// When it was kept, by the wall clock: milliseconds since 1970.
    pub time_ms: u64,
    /// The file's size as its writer saw it.
    pub size: u64,
    /// Bytes kept.
    pub bytes: u64,
    /// Where they belong, in the order of the bytes in `data`.
    pub ranges: Vec<ByteRange>,
}

impl Item {
    pub(super) fn new(id: RecoveryId, lost: &Lost) -> Result<Self, RecoveryError> {
        let ranges = ranges(&lost.extents)?;
        let since_1970 = lost.time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            id,
            source: lost.source.clone(),
            path: lost.path.clone().filter(|path| fits(path)),
            object: lost.object.to_string(),
            writer: lost.writer,
            reason: lost.reason,
            time_ms: millis(since_1970),
            size: lost.size,
            bytes: lost.bytes(),
            ranges,
        })
    }

    pub(super) fn log(&self) {
        tracing::warn!(
            id = %self.id,
            source = %self.source,
            path = %self.file(),
            object = %self.object,
            bytes = self.bytes,
            reason = %self.reason,
            "buffered data could not be brought in; it is kept: see `fsclient recover`"
        );
    }

    /// Size of the file with what is kept in it.
    pub fn full_size(&self) -> u64 {
        let ends = self.ranges.iter().map(ByteRange::end);
        ends.fold(self.size, u64::max)
    }

    /// Bytes of the full file that are neither kept nor within the first `base`, those of the file as it is now.
    pub fn gaps(&self, base: u64) -> Vec<ByteRange> {
        let mut ranges = self.ranges.clone();
        ranges.push(ByteRange {
            offset: 0,
            length: base,
        });
        ranges.sort_by_key(|range| range.offset);
        let full = self.full_size();
        let mut gaps = Vec::new();
        let mut end = 0;
        let last = ByteRange {
            offset: full,
            length: 0,
        };
        for range in ranges.iter().chain([&last]) {
            let until = range.offset.min(full);
            if until > end {
                gaps.push(ByteRange {
                    offset: end,
                    length: until - end,
                });
            }
            end = end.max(range.end());
        }
        gaps
    }

    /// What is wrong with it, if it was not written by this module.
    pub(super) fn flaw(&self, id: RecoveryId) -> Option<String> {
        let sum = self
            .ranges
            .iter()
            .try_fold(0_u64, |sum, range| sum.checked_add(range.length));
        if self.id != id {
            return Some(format!("it says that it is {}", self.id));
        }
        if self.ranges.len() > MAX_RECOVERY_RANGES {
            return Some("too many ranges".into());
        }
        if sum != Some(self.bytes) {
            return Some("the number of bytes is not the sum of the ranges".into());
        }
        (self.full_size() > END_OF_FILES).then(|| "a size beyond 2^63 - 1".into())
    }

    /// The path for people.
    pub fn file(&self) -> String {
        file(self.path.as_deref(), &self.object)
    }
}

impl Lost {
    pub(super) fn bytes(&self) -> u64 {
        self.extents
            .iter()
            .map(|(_, bytes)| bytes.len() as u64)
            .sum()
    }

    pub(super) fn not_kept(&self, why: RecoveryError) -> RecoveryError {
        RecoveryError::NotKept {
            file: file(self.path.as_deref(), &self.object.to_string()),
            source_name: self.source.clone(),
            bytes: self.bytes(),
            why: Box::new(why),
        }
    }
}

fn file(path: Option<&Path>, object: &str) -> String {
    match path {
        Some(path) => path_for_people(path),
        None => format!("a file of unknown name (handle {})", printable(object)),
    }
}

fn fits(path: &Path) -> bool {
    let fits = path.as_os_str().len() <= MAX_RECOVERY_PATH;
    if !fits {
        tracing::warn!("a path too long to record: what is kept goes without it");
    }
    fits
}

/// Extents that follow each other are one range.
fn ranges(extents: &[(u64, Bytes)]) -> Result<Vec<ByteRange>, RecoveryError> {
    let mut ranges: Vec<ByteRange> = Vec::new();
    for (offset, bytes) in extents.iter().filter(|(_, bytes)| !bytes.is_empty()) {
        let (offset, length) = (*offset, bytes.len() as u64);
        if offset
            .checked_add(length)
            .is_none_or(|end| end > END_OF_FILES)
        {
            return Err(RecoveryError::RangeTooFar(offset));
        }
        match ranges.last_mut() {
            Some(last) if last.end() == offset => last.length += length,
            _ => ranges.push(ByteRange { offset, length }),
        }
    }
    match ranges.len() > MAX_RECOVERY_RANGES {
        true => Err(RecoveryError::TooManyRanges),
        false => Ok(ranges),
    }
}

/// A path as it can stand in one line of a terminal or message, whatever its bytes.
pub fn path_for_people(path: &Path) -> String {
    escaped(path.as_os_str().as_bytes()).to_string()
}

pub use path_bytes::path_as_text;

/// Paths are bytes, JSON is text: a path that isn't UTF-8 becomes a list of numbers.
mod path_bytes {
    use super::*;
    use serde::{Deserializer, Serializer};
    use std::ffi::OsStr;

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Form<'a> {
        Text(std::borrow::Cow<'a, str>),
        Bytes(Vec<u8>),
    }

    pub(super) fn serialize<S: Serializer>(
        path: &Option<PathBuf>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        path.as_deref().map(form).serialize(to)
    }

    fn form(path: &Path) -> Form<'_> {
        match path.to_str() {
            Some(text) => Form::Text(text.into()),
            None => Form::Bytes(path.as_os_str().as_bytes().to_vec()),
        }
    }

    /// As text, or else as its bytes.
    ///
    /// # Errors
    /// The serializer's.
    pub fn path_as_text<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        form(path).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<PathBuf>, D::Error> {
        let form = Option::<Form<'static>>::deserialize(from)?;
        Ok(form.map(|form| match form {
            Form::Text(text) => PathBuf::from(text.into_owned()),
            Form::Bytes(bytes) => PathBuf::from(OsStr::from_bytes(&bytes)),
        }))
    }
}
