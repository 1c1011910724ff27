//! The read-only descriptors and mappings through which every action is checked.

use super::model::Model;
use crate::mapping::Mapping;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A way to read a range.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// `pread` on the long-held descriptor.
    Read,
    /// The long-held mapping.
    Map,
    /// `sendfile` from the long-held descriptor.
    Send,
    /// `open` and `pread`.
    Open,
}

impl Way {
    const ALL: [Way; 4] = [Way::Read, Way::Map, Way::Send, Way::Open];
}

/// How much is compared after an action.
#[derive(Clone, Copy, Debug)]
pub(super) enum Look {
    /// Everything, in every way.
    Everywhere,
    /// In one way on one mount, chosen by this number.
    At(usize),
}

/// What one mount holds of the file for reading.
struct View {
    name: &'static str,
    path: PathBuf,
    reader: File,
    map: Mapping,
}

/// A view on each mount.
pub(super) struct Views {
    views: [View; 2],
    max_len: usize,
}

impl View {
    fn open(name: &'static str, path: PathBuf, max_len: usize) -> io::Result<Self> {
        let reader = File::open(&path)?;
        let map = Mapping::new(&reader, 0, max_len, false)?;
        Ok(Self {
            name,
            path,
            reader,
            map,
        })
    }

    /// Reads a range in one way and compares it.
    fn compare(
        &self,
        way: Way,
        model: &Model,
        (offset, len): (usize, usize),
    ) -> Result<(), String> {
        let read = match way {
            Way::Read => pread(&self.reader, offset, len),
            Way::Map => Ok(self.through_map(model, offset, len)),
            Way::Send => sendfile(&self.reader, offset, len),
            Way::Open => File::open(&self.path).and_then(|file| pread(&file, offset, len)),
        };
        let by = format!("{way:?} on the {} mount", self.name);
        let read = read.map_err(|error| format!("{by}: {error}"))?;
        same(&by, model, offset, len, &read)
    }

    /// Only what the model says is inside the file: touching more is SIGBUS.
    fn through_map(&self, model: &Model, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; model.read(offset, len).len()];
        if !bytes.is_empty() {
            self.map.copy_to(offset, &mut bytes);
        }
        bytes
    }

    fn compare_size(&self, model: &Model) -> Result<(), String> {
        let found = self
            .reader
            .metadata()
            .map_err(|error| format!("fstat: {error}"))?
            .len();
        same_size(&format!("fstat on the {} mount", self.name), model, found)?;
        let found = std::fs::metadata(&self.path)
            .map_err(|error| format!("stat: {error}"))?
            .len();
        same_size(&format!("stat on the {} mount", self.name), model, found)
    }
}

impl Views {
    pub(super) fn open(first: &Path, second: &Path, max_len: usize) -> io::Result<Self> {
        let views = [
            View::open("first", first.to_owned(), max_len)?,
            View::open("second", second.to_owned(), max_len)?,
        ];
        Ok(Self { views, max_len })
    }

    /// Closes all descriptors and mappings and opens them again.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        for view in &mut self.views {
            *view = View::open(view.name, view.path.clone(), self.max_len)?;
        }
        Ok(())
    }

    /// Compares the file's size; returns the number of comparisons.
    pub(super) fn compare_size(
        &self,
        look: Look,
        writer: &File,
        model: &Model,
    ) -> Result<u64, String> {
        for view in self.at(look) {
            view.compare_size(model)?;
        }
        let found = writer
            .metadata()
            .map_err(|error| format!("fstat of the writer: {error}"))?;
        same_size("fstat of the writer", model, found.len())?;
        Ok(1 + 2 * self.at(look).count() as u64)
    }

    /// Compares a range; returns the number of comparisons.
    pub(super) fn compare(
        &self,
        look: Look,
        writer: &File,
        model: &Model,
        range: (usize, usize),
    ) -> Result<u64, String> {
        let ways = match look {
            Look::Everywhere => Way::ALL.to_vec(),
            Look::At(number) => vec![Way::ALL[number % Way::ALL.len()]],
        };
        let mut compared = 1;
        for view in self.at(look) {
            for way in &ways {
                view.compare(*way, model, range)?;
                compared += 1;
            }
        }
        let (offset, len) = range;
        let read = pread(writer, offset, len).map_err(|error| format!("pread: {error}"))?;
        let how = "pread on the read-write descriptor";
        same(how, model, offset, len, &read)?;
        Ok(compared)
    }

    /// The second mount first: it has to ask for what the writer still holds.
    fn at(&self, look: Look) -> impl Iterator<Item = &View> {
        let views = self.views.iter().rev().enumerate();
        let chosen = move |index: usize| match look {
            Look::Everywhere => true,
            Look::At(number) => number / Way::ALL.len() % 2 == index,
        };
        views.filter_map(move |(index, view)| chosen(index).then_some(view))
    }
}

fn pread(file: &File, offset: usize, len: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; len];
    let mut got = 0;
    while got < len {
        match file.read_at(&mut buffer[got..], (offset + got) as u64)? {
            0 => break,
            more => got += more,
        }
    }
    buffer.truncate(got);
    Ok(buffer)
}

/// At most what a pipe holds at once.
fn sendfile(file: &File, offset: usize, len: usize) -> io::Result<Vec<u8>> {
    let (from_pipe, to_pipe) = rustix::pipe::pipe()?;
    let mut at = offset as u64;
    let mut bytes = Vec::with_capacity(len);
    let mut from_pipe = File::from(from_pipe);
    while bytes.len() < len {
        let sent = rustix::fs::sendfile(&to_pipe, file, Some(&mut at), len - bytes.len())?;
        if sent == 0 {
            break;
        }
        let filled = bytes.len();
        bytes.resize(filled + sent, 0);
        from_pipe.read_exact(&mut bytes[filled..])?;
    }
    Ok(bytes)
}

fn same_size(how: &str, model: &Model, found: u64) -> Result<(), String> {
    if found == model.len() as u64 {
        return Ok(());
    }
    Err(format!(
        "{how} says {found} bytes, expected {}",
        model.len()
    ))
}

fn same(how: &str, model: &Model, offset: usize, len: usize, found: &[u8]) -> Result<(), String> {
    let expected = model.read(offset, len);
    if expected == found {
        return Ok(());
    }
    let differs = |(a, b): (&u8, &u8)| a != b;
    let first = expected.iter().zip(found).position(differs);
    let Some(first) = first else {
        return Err(format!(
            "{how} of {len} bytes at {offset} returned {} bytes, expected {}",
            found.len(),
            expected.len()
        ));
    };
    let wrong = expected
        .iter()
        .zip(found)
        .filter(|pair| differs(*pair))
        .count();
    Err(format!(
        "{how} of {len} bytes at {offset}: {wrong} bytes differ, the first at {} ({:#04x}, expected \
         {:#04x}); the file has {} bytes",
        offset + first,
        found[first],
        expected[first],
        model.len(),
    ))
}
