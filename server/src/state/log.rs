//! An append-only file of small records, each with its length and a checksum.
//!
//! What an unfinished write has left at the end is cut off when the file is opened.

use super::files;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const LEN: usize = 2;
const SUM: usize = 4;
/// A log is written anew when it has grown by this much beyond twice what it then had.
const SLACK: u64 = 1 << 20;

/// An open log.
#[derive(Debug)]
pub struct Log {
    file: File,
    path: PathBuf,
    len: u64,
    after_rewrite: u64,
    broken: bool,
}

impl Log {
    /// Opens or makes the log and reads its records.
    pub fn open(path: &Path) -> io::Result<(Self, Vec<Vec<u8>>)> {
        let (content, is_new) = match fs::read(path) {
            Ok(content) => (content, false),
            Err(e) if e.kind() == io::ErrorKind::NotFound => (Vec::new(), true),
            Err(e) => return Err(e),
        };
        let (records, len) = parse(&content);
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        if is_new {
            files::sync_folder(path)?;
        }
        if len < content.len() {
            let cut = content.len() - len;
            tracing::warn!(path = %path.display(), bytes = cut, "an unfinished record was cut off");
            file.set_len(len as u64)?;
        }
        let log = Self {
            file,
            path: path.to_owned(),
            len: len as u64,
            after_rewrite: len as u64,
            broken: false,
        };
        Ok((log, records))
    }

    /// Appends a record, whole or not at all. It survives the process, not the host.
    pub fn append(&mut self, record: &[u8]) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("an earlier failure has damaged the log"));
        }
        let framed = frame(record)?;
        match self.file.write_all(&framed) {
            Ok(()) => {
                self.len += framed.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.broken = self.file.set_len(self.len).is_err();
                Err(error)
            }
        }
    }

    /// Makes durable what was appended.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Whether it has grown enough to be worth writing anew.
    pub fn is_long(&self) -> bool {
        self.len > 2 * self.after_rewrite + SLACK
    }

    /// Writes the log anew with these records; durably if told so.
    pub fn rewrite(
        &mut self,
        records: impl IntoIterator<Item = Vec<u8>>,
        durable: bool,
    ) -> io::Result<()> {
        let draft = files::draft(&self.path);
        let mut file = files::create(&draft)?;
        let mut content = Vec::new();
        for record in records {
            content.extend_from_slice(&frame(&record)?);
        }
        file.write_all(&content)?;
        if durable {
            file.sync_all()?;
        }
        fs::rename(&draft, &self.path)?;
        if durable {
            files::sync_folder(&self.path)?;
        }
        self.file = file;
        self.len = content.len() as u64;
        self.after_rewrite = self.len;
        self.broken = false;
        Ok(())
    }
}

fn sum(record: &[u8]) -> [u8; SUM] {
    let mut sum = [0; SUM];
    let digest = ring::digest::digest(&ring::digest::SHA256, record);
    sum.iter_mut()
        .zip(digest.as_ref())
        .for_each(|(to, from)| *to = *from);
    sum
}

fn frame(record: &[u8]) -> io::Result<Vec<u8>> {
    let len = u16::try_from(record.len()).map_err(io::Error::other)?;
    Ok([&len.to_le_bytes()[..], record, &sum(record)].concat())
}

/// The whole records at the start, and how many bytes they take.
fn parse(content: &[u8]) -> (Vec<Vec<u8>>, usize) {
    let (mut records, mut rest) = (Vec::new(), content);
    while let Some((record, behind)) = first(rest) {
        records.push(record.to_vec());
        rest = behind;
    }
    (records, content.len() - rest.len())
}

fn first(content: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = content.split_first_chunk::<LEN>()?;
    let (record, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
    let (found, rest) = rest.split_first_chunk::<SUM>()?;
    // An empty record is never written; a hole of zeros must not look like many.
    (!record.is_empty() && *found == sum(record)).then_some((record, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::Scratch;

    #[test]
    fn records_come_back_and_an_unfinished_one_is_cut_off_wherever_it_ends() {
        let scratch = Scratch::new();
        let path = scratch.path("log");
        let (mut log, found) = Log::open(&path).expect("open");
        assert!(found.is_empty());
        log.append(b"one").expect("append");
        log.append(b"two").expect("append");
        drop(log);
        let whole = fs::read(&path).expect("read");
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).expect("write");
            let (mut log, found) = Log::open(&path).expect("open");
            assert_eq!(found.len(), cut / 9, "cut at {cut}");
            log.append(b"three").expect("append");
            let (_, found) = Log::open(&path).expect("open");
            assert_eq!(found.last().expect("record"), b"three");
        }
    }

    #[test]
    fn zeros_and_flipped_bits_end_the_log() {
        let scratch = Scratch::new();
        let path = scratch.path("log");
        fs::write(&path, [0; 4096]).expect("write");
        assert_eq!(Log::open(&path).expect("open").1.len(), 0);
        let mut content = frame(b"record").expect("frame");
        content[4] ^= 1;
        fs::write(&path, content).expect("write");
        assert_eq!(Log::open(&path).expect("open").1.len(), 0);
    }

    #[test]
    fn a_rewritten_log_has_the_new_records_and_goes_on() {
        let scratch = Scratch::new();
        let path = scratch.path("log");
        let (mut log, _) = Log::open(&path).expect("open");
        log.append(b"old").expect("append");
        log.rewrite([b"a".to_vec()], true).expect("rewrite");
        log.append(b"b").expect("append");
        let (_, found) = Log::open(&path).expect("open");
        assert_eq!(found, [b"a".to_vec(), b"b".to_vec()]);
    }
}
