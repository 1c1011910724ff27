//! What `leasefs-locker` does: it obeys, one line at a time.
//!
//! | command | answer |
//! |---|---|
//! | `open SLOT PATH r\|w\|rw` | `ok` |
//! | `dup SLOT NEW`, `close SLOT`, `seek SLOT OFFSET`, `sync SLOT` | `ok` |
//! | `fcntl\|ofd SLOT r\|w\|u set\|cur\|end START LEN [wait]` | `ok` |
//! | `flock SLOT r\|w\|u [wait]` | `ok` |
//! | `whole SLOT KIND r\|w\|u [wait]`: the whole file | `ok` |
//! | `test SLOT fcntl\|ofd r\|w set\|cur\|end START LEN` | `free`, or `TYPE WHENCE START LEN PID` |
//! | `read SLOT OFFSET` | `ok VALUE` |
//! | `write SLOT OFFSET VALUE` | `ok` |
//! | `fork`: a child that has all descriptors too, until it is killed or this process ends | `ok PID` |
//! | `pairs SLOT KIND TIMES`: locks and unlocks | `ok` |
//! | `count PATH KIND TIMES LINGER sync\|nosync`: see `counting` | many, then `ok` |
//! | `exit` | none |
//!
//! or, in place of `ok`, the name of the error. Each answer has, before it, when the command was begun
//! and when it was done (`CLOCK_MONOTONIC`, in nanoseconds). SIGUSR1 has a handler that interrupts what
//! waits, SIGUSR2 one that has it begun again (`SA_RESTART`).

use super::sys::{self, Kind, Range, Type, errno_name};
use leasefs_host::clock::monotonic_time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::str::{FromStr, SplitWhitespace};

/// Why a command has no good answer.
#[derive(Debug)]
pub enum Trouble {
    /// The kernel says so.
    Refused(io::Error),
    /// It makes no sense.
    Nonsense(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Refused(error)
    }
}

impl From<String> for Trouble {
    fn from(text: String) -> Self {
        Self::Nonsense(text)
    }
}

/// The words of a command that are left.
struct Words<'a>(SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn text(&mut self) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| "a word is missing".to_owned())
    }

    fn next<T: FromStr>(&mut self) -> Result<T, String> {
        let word = self.text()?;
        word.parse().map_err(|_| format!("what is {word}?"))
    }

    fn range(&mut self) -> Result<Range, String> {
        Ok(Range {
            whence: self.next()?,
            start: self.next()?,
            len: self.next()?,
        })
    }

    /// Whether this is the next word.
    fn is(&mut self, word: &str) -> bool {
        self.0.next() == Some(word)
    }
}

/// One line of what this process says.
pub fn say(began: u64, text: &str) {
    let line = format!("{began} {} {text}\n", monotonic_time().as_nanos());
    // One write: somebody may kill this process at any time. Nobody listens any more? Then it ends soon.
    let _ = io::stdout().write_all(line.as_bytes());
    let _ = io::stdout().flush();
}

/// The process with its descriptors.
pub struct Process {
    commands: BufReader<File>,
    slots: HashMap<u32, File>,
}

impl Process {
    /// One that obeys what comes on standard input.
    ///
    /// # Errors
    /// If it can't have that, or signals.
    pub fn new() -> io::Result<Self> {
        die_with_parent();
        handle(libc::SIGUSR1, 0)?;
        handle(libc::SIGUSR2, libc::SA_RESTART)?;
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Self {
            commands: BufReader::new(input.into()),
            slots: HashMap::new(),
        })
    }

    /// Obeys until there are no more commands.
    ///
    /// # Errors
    /// If a command can't be read, or makes no sense.
    pub fn run(&mut self) -> io::Result<()> {
        let mut line = String::new();
        while self.commands.read_line(&mut line)? > 0 {
            if line.trim() == "exit" {
                // Nothing is closed before.
                std::process::exit(0);
            }
            let began = monotonic_time().as_nanos();
            match self.obey(&line) {
                Ok(answer) => say(began, &answer),
                Err(Trouble::Refused(error)) => say(began, &errno_name(&error)),
                Err(Trouble::Nonsense(why)) => {
                    return Err(io::Error::other(format!("{why} in {line:?}")));
                }
            }
            line.clear();
        }
        Ok(())
    }

    /// Whether a command waits, or will never come.
    pub fn is_told(&self) -> bool {
        let mut look = [PollFd::new(self.commands.get_ref(), PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        !self.commands.buffer().is_empty() || !matches!(poll(&mut look, Some(&now)), Ok(0))
    }

    fn obey(&mut self, line: &str) -> Result<String, Trouble> {
        let mut words = Words(line.split_whitespace());
        let command = words.text()?;
        if let "open" | "count" | "fork" = command {
            return self.obey_without_slot(command, &mut words);
        }
        let slot: u32 = words.next()?;
        if command == "close" {
            let closed = self.slots.remove(&slot);
            return closed
                .map(|_| "ok".to_owned())
                .ok_or_else(|| Trouble::Nonsense("it is closed".to_owned()));
        }
        let file = self.slots.get(&slot);
        let file = file.ok_or_else(|| format!("no slot {slot}"))?;
        let answer = on_slot(command, file, &mut words)?;
        if let Answer::Copy(to, copy) = answer {
            self.slots.insert(to, copy);
            return Ok("ok".to_owned());
        }
        Ok(answer.into_text())
    }

    fn obey_without_slot(
        &mut self,
        command: &str,
        words: &mut Words<'_>,
    ) -> Result<String, Trouble> {
        match command {
            "open" => {
                let (slot, path, mode) = (words.next()?, words.text()?, words.text()?);
                let file = OpenOptions::new()
                    .read(mode != "w")
                    .write(mode != "r")
                    .open(path)?;
                self.slots.insert(slot, file);
            }
            "fork" => return Ok(format!("ok {}", fork()?)),
            _ => {
                let count = super::counting::Count {
                    path: words.text()?.into(),
                    kind: words.next()?,
                    times: words.next()?,
                    linger: std::time::Duration::from_micros(words.next()?),
                    sync: words.is("sync"),
                };
                count.run(self);
            }
        }
        Ok("ok".to_owned())
    }
}

enum Answer {
    Done,
    Text(String),
    Copy(u32, File),
}

impl Answer {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Done | Self::Copy(..) => "ok".to_owned(),
        }
    }
}

fn on_slot(command: &str, file: &File, words: &mut Words<'_>) -> Result<Answer, Trouble> {
    match command {
        "dup" => return Ok(Answer::Copy(words.next()?, file.try_clone()?)),
        "seek" => {
            let to = words.next()?;
            io::Seek::seek(&mut &*file, io::SeekFrom::Start(to))?;
        }
        "sync" => file.sync_data()?,
        "read" => {
            return Ok(Answer::Text(format!(
                "ok {}",
                value_at(file, words.next()?)?
            )));
        }
        "write" => {
            let (offset, value): (u64, u64) = (words.next()?, words.next()?);
            file.write_all_at(&value.to_le_bytes(), offset)?;
        }
        _ => return on_lock(command, file.as_fd(), words),
    }
    Ok(Answer::Done)
}

fn on_lock(command: &str, file: BorrowedFd<'_>, words: &mut Words<'_>) -> Result<Answer, Trouble> {
    match command {
        "fcntl" | "ofd" => {
            let kind: Kind = command.parse()?;
            let (what, range) = (words.next()?, words.range()?);
            sys::set_range(file, kind, what, range, words.is("wait"))?;
        }
        "flock" => sys::set_whole(file, words.next()?, words.is("wait"))?,
        "whole" => sys::set(file, words.next()?, words.next()?, words.is("wait"))?,
        "test" => {
            let (kind, what) = (words.next()?, words.next()?);
            return Ok(Answer::Text(sys::get(file, kind, what, words.range()?)?));
        }
        "pairs" => {
            let (kind, times): (Kind, u64) = (words.next()?, words.next()?);
            for _ in 0..times {
                sys::set(file, kind, Type::Write, false)?;
                sys::set(file, kind, Type::Unlock, false)?;
            }
        }
        _ => return Err(Trouble::Nonsense(format!("what is {command}?"))),
    }
    Ok(Answer::Done)
}

/// The eight bytes there.
///
/// # Errors
/// If they can't be read.
pub fn value_at(file: &File, offset: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(u64::from_le_bytes(bytes))
}

fn die_with_parent() {
    // SAFETY: a call without memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

extern "C" fn nothing(_signal: i32) {}

/// Has a signal handled by doing nothing, so that all it does is to interrupt.
fn handle(signal: i32, flags: i32) -> io::Result<()> {
    // SAFETY: all zeroes is an action without a mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
    action.sa_flags = flags;
    // SAFETY: the action lives through the call, and the handler touches nothing.
    match unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A child that keeps what it has inherited, but for what its parent is talked to by.
fn fork() -> io::Result<i32> {
    // SAFETY: this process has one thread, so the child may do anything.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            die_with_parent();
            for number in 0..3 {
                // SAFETY: the standard descriptors are not used in the child any more.
                drop(unsafe { OwnedFd::from_raw_fd(number) });
            }
            loop {
                // SAFETY: a call without memory.
                unsafe { libc::pause() };
            }
        }
        child => Ok(child),
    }
}
