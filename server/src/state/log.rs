//! An append-only file of small records, each with its length and a checksum, and the state that they come
//! to: a record is on the file before its state has it. Once the file has grown long it is written anew with
//! what the state is then.
//!
//! What an unfinished write has left at the end is cut off when the file is opened. A whole record that
//! can't be understood is another version's: nothing is guessed from the rest.

use super::error::StateError;
use super::trouble::Trouble;
use leasefs_host::files;
use leasefs_protocol::codec::{self, PREFIX};
use leasefs_protocol::latency::Histogram;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const LEN: usize = 2;
const SUM: usize = 4;
/// A log is written anew when it has grown by this much beyond twice what it then had.
const SLACK: u64 = 1 << 20;

/// What the records of a log come to.
pub trait State: Debug {
    /// A record.
    type Record: Debug + Serialize + DeserializeOwned;

    /// Takes a record in.
    fn apply(&mut self, record: Self::Record);

    /// Records that come to this state, the first first.
    fn snapshot(&self) -> Vec<Self::Record>;
}

/// What a log has to outlive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlives {
    /// The server's process: nothing is made durable unless [`Log::sync`] is called.
    Process,
    /// The host: what is written anew is durable.
    Host,
}

/// An open log with its state.
#[derive(Debug)]
pub struct Log<S> {
    state: S,
    outlives: Outlives,
    file: File,
    path: PathBuf,
    len: u64,
    after_rewrite: u64,
    /// How long writing takes.
    writes: Arc<Histogram>,
    trouble: Arc<Trouble>,
    /// Its end isn't known, or its name isn't durable: nothing counts until it has been written anew.
    broken: bool,
}

impl<S: State> Log<S> {
    /// Opens or makes the log and brings `state` to what its records say.
    pub fn open(path: &Path, outlives: Outlives, mut state: S) -> Result<Self, StateError> {
        let (file, records) = open(path).map_err(StateError::file(path))?;
        let mut len = 0;
        for record in records {
            len += (LEN + record.len() + SUM) as u64;
            let known = codec::decode(&record).map_err(|e| StateError::Damaged {
                path: path.to_owned(),
                why: format!("a record of {} bytes: {e}", record.len()),
            })?;
            state.apply(known);
        }
        Ok(Self {
            state,
            outlives,
            file,
            path: path.to_owned(),
            len,
            after_rewrite: len,
            writes: Arc::default(),
            trouble: Arc::default(),
            broken: false,
        })
    }

    /// What its records have come to.
    pub fn state(&self) -> &S {
        &self.state
    }

    /// How long writing to it takes.
    pub fn writes(&self) -> Arc<Histogram> {
        Arc::clone(&self.writes)
    }

    /// Whether it can be written.
    pub fn trouble(&self) -> Arc<Trouble> {
        Arc::clone(&self.trouble)
    }

    /// To change what no record tells, or the next writing anew will.
    pub fn state_mut(&mut self) -> &mut S {
        &mut self.state
    }

    /// Appends a record, whole or not at all, and takes it in if that was done. It survives the process,
    /// not the host.
    pub fn append(&mut self, record: S::Record) -> io::Result<()> {
        self.write(&[&record])?;
        self.state.apply(record);
        self.shorten();
        Ok(())
    }

    /// As [`Log::append`], but takes the record in whatever becomes of the file: what has happened has.
    pub fn note(&mut self, record: S::Record) -> io::Result<()> {
        let written = self.write(&[&record]);
        self.misses(&written);
        self.state.apply(record);
        self.shorten();
        written
    }

    /// Notes a record and appends another behind it, in one go: a crash leaves none, the first or both.
    pub fn note_and_append(&mut self, noted: S::Record, appended: S::Record) -> io::Result<()> {
        let written = self.write(&[&noted, &appended]);
        self.misses(&written);
        self.state.apply(noted);
        if written.is_ok() {
            self.state.apply(appended);
        }
        self.shorten();
        written
    }

    /// As [`Log::append`], but durably: it survives the host.
    pub fn append_durably(&mut self, record: S::Record) -> io::Result<()> {
        self.write(&[&record])?;
        self.sync()?;
        self.state.apply(record);
        self.shorten();
        Ok(())
    }

    /// Makes durable what was appended.
    pub fn sync(&mut self) -> io::Result<()> {
        let synced = match self.broken {
            true => Err(broken()),
            false => self.file.sync_data(),
        };
        // What the disk has of it is anybody's guess, and the next sync wouldn't tell.
        self.broken = synced.is_err();
        self.trouble.told(synced)
    }

    /// Writes the log anew with what its state is.
    pub fn rewrite(&mut self) -> io::Result<()> {
        let mut content = Vec::new();
        for record in self.state.snapshot() {
            content.extend_from_slice(&frame(&encode(&record)?)?);
        }
        let draft = files::draft(&self.path);
        let mut file = files::create(&draft)?;
        file.write_all(&content)?;
        if self.outlives == Outlives::Host {
            file.sync_all()?;
        }
        fs::rename(&draft, &self.path)?;
        // From now on the other file is nobody's.
        self.file = file;
        self.len = content.len() as u64;
        self.after_rewrite = self.len;
        self.broken = true;
        if self.outlives == Outlives::Host {
            files::sync_parent(&self.path)?;
        }
        self.broken = false;
        Ok(())
    }

    /// The state is ahead of a file that couldn't be written, which has to be written anew before anything else stands in it.
    fn misses(&mut self, written: &io::Result<()>) {
        self.broken |= written.is_err();
    }

    fn write(&mut self, records: &[&S::Record]) -> io::Result<()> {
        let written = self.try_to_write(records);
        self.trouble.told(written)
    }

    fn try_to_write(&mut self, records: &[&S::Record]) -> io::Result<()> {
        if self.broken {
            self.rewrite()?;
        }
        let mut framed = Vec::new();
        for record in records {
            framed.extend_from_slice(&frame(&encode(record)?)?);
        }
        let begun = Instant::now();
        let written = self.file.write_all(&framed);
        self.writes.add(begun.elapsed());
        match written {
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

    fn shorten(&mut self) {
        if self.len > 2 * self.after_rewrite + SLACK
            && let Err(error) = self.rewrite()
        {
            tracing::warn!(path = %self.path.display(), %error, "a log can't be shortened");
        }
    }
}

fn broken() -> io::Error {
    io::Error::other("an earlier failure has damaged the log")
}

/// The file, open for appending behind its last whole record, and the records.
fn open(path: &Path) -> io::Result<(File, Vec<Vec<u8>>)> {
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
        files::sync_parent(path)?;
    }
    if len < content.len() {
        let cut = content.len() - len;
        tracing::warn!(path = %path.display(), bytes = cut, "an unfinished record was cut off");
        file.set_len(len as u64)?;
    }
    Ok((file, records))
}

fn encode(record: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut framed = codec::encode(record, 0).map_err(io::Error::other)?;
    Ok(framed.split_off(PREFIX))
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

    /// Remembers the last few.
    #[derive(Debug, Default)]
    struct Last(Vec<String>);

    impl State for Last {
        type Record = String;

        fn apply(&mut self, record: String) {
            self.0.push(record);
            if self.0.len() > 2 {
                self.0.remove(0);
            }
        }

        fn snapshot(&self) -> Vec<String> {
            self.0.clone()
        }
    }

    fn opened(path: &Path) -> Log<Last> {
        Log::open(path, Outlives::Host, Last::default()).expect("open")
    }

    fn found(path: &Path) -> Vec<String> {
        opened(path).state.0
    }

    #[test]
    fn records_come_back_and_an_unfinished_one_is_cut_off_wherever_it_ends() {
        let scratch = Scratch::new();
        let path = scratch.path("log");
        let mut log = opened(&path);
        log.append("one".to_owned()).expect("append");
        let first = log.len as usize;
        log.append("two".to_owned()).expect("append");
        drop(log);
        let whole = fs::read(&path).expect("read");
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).expect("write");
            let mut log = opened(&path);
            assert_eq!(log.state.0.len(), cut / first, "cut at {cut}");
            log.append("three".to_owned()).expect("append");
            assert_eq!(found(&path).last().map(String::as_str), Some("three"));
        }
    }

    #[test]
    fn zeros_and_flipped_bits_end_the_log() {
        let scratch = Scratch::new();
        let path = scratch.path("log");
        fs::write(&path, [0; 4096]).expect("write");
        assert!(found(&path).is_empty());
        let mut content = frame(b"record").expect("frame");
        content[4] ^= 1;
        fs::write(&path, content).expect("write");
        assert!(found(&path).is_empty());
    }

    #[test]
    fn a_whole_record_of_another_kind_is_damage_and_the_file_stays_as_it_is() {
        let scratch = Scratch::new();
        let path = scratch.path("log");
        let content = frame(b"\xff\xff no string").expect("frame");
        fs::write(&path, &content).expect("write");
        let refused = Log::open(&path, Outlives::Host, Last::default());
        assert!(matches!(refused, Err(StateError::Damaged { .. })));
        assert_eq!(fs::read(&path).expect("read"), content);
    }

    #[test]
    fn a_log_that_has_grown_long_is_written_anew_and_goes_on() {
        let scratch = Scratch::new();
        let path = scratch.path("log");
        let mut log = opened(&path);
        let long = "x".repeat(30_000);
        for number in 0..100 {
            log.append(format!("{number} {long}")).expect("append");
        }
        log.append("last".to_owned()).expect("append");
        assert!(fs::metadata(&path).expect("file").len() < SLACK + 200_000);
        assert_eq!(found(&path), [format!("99 {long}"), "last".to_owned()]);
    }

    #[test]
    fn of_two_records_in_one_go_a_crash_leaves_none_the_first_or_both() {
        let scratch = Scratch::new();
        let path = scratch.path("log");
        let two = || ("one".to_owned(), "two".to_owned());
        let mut log = opened(&path);
        log.note_and_append(two().0, two().1).expect("written");
        assert_eq!(log.state.0, ["one", "two"]);
        drop(log);
        let whole = fs::read(&path).expect("read");
        for cut in 0..=whole.len() {
            fs::write(&path, &whole[..cut]).expect("write");
            let count = 2 * cut / whole.len();
            assert_eq!(found(&path), ["one", "two"][..count], "cut at {cut}");
        }
    }

    #[test]
    fn what_can_not_be_written_is_not_taken_in_unless_it_has_happened_anyway() {
        let scratch = Scratch::new();
        let path = scratch.path("log");
        let mut log = opened(&path);
        let too_long = "x".repeat(usize::from(u16::MAX) + 1);
        assert!(log.append(too_long.clone()).is_err());
        assert!(log.state.0.is_empty());
        assert!(log.note(too_long).is_err());
        assert_eq!(log.state.0.len(), 1);
    }
}
