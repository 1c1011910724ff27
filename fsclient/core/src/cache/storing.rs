//! Writes that are kept here, and what becomes of them at the end.

use super::dirty::{DirtyFile, File, MAX_END, Store, Stored, Undone, attrs};
use super::entry::Dropped;
use super::state::State;
use leasefs_lease::client::Run;
use leasefs_lease::time::BootTime;
use leasefs_protocol::request::WriteAt;
use leasefs_protocol::{Handle, OpenId, Parts, Refusal, Version};
use std::path::PathBuf;

impl State {
    /// Keeps a write here if a live Write lease allows it. `clear`: no page of its range is in the
    /// kernel, nor can one come in. What the kernel has to drop goes into `dropped`.
    pub fn store(
        &mut self,
        now: BootTime,
        store: &Store,
        (budget, clear): (usize, bool),
        dropped: &mut Dropped,
    ) -> Stored {
        let object = store.object;
        let Some(live) = self.session.witness(now) else {
            return Stored::Through;
        };
        let attr = self.tables.peek_attr(&live, &object);
        let known = self.dirty.files.get(&object);
        let size = known.map(|file| file.buffer.size());
        let Some(size) = size.or(attr.map(|attr| attr.size)) else {
            return Stored::Through;
        };
        let offset = match store.at {
            WriteAt::Offset(offset) => offset,
            WriteAt::Append => size,
        };
        let end = offset.saturating_add(store.data.len() as u64);
        let changing = self.dirty.changing.contains_key(&object);
        if changing || !self.leases.may_buffer(&object) || end > MAX_END {
            return Stored::Through;
        }
        let len = store.data.len();
        if !self.dirty.has_room(now, len) {
            return Stored::Through;
        }
        if self.dirty.bytes + len > budget || self.dirty.is_at_bound(&object, len) {
            return Stored::Full;
        }
        if !clear && self.pages.may_hold(&object) {
            return Stored::Pages;
        }
        let base = attr.map(|attr| attr.version()).unwrap_or_default();
        let first = self.becomes_dirty(object, base, dropped);
        self.dirty.count(&object, |file| {
            file.buffer.put(offset, store.data.clone(), store.kill_priv);
            file.date = store.date;
            file.written_by(&store.writer);
        });
        Stored::Done { first }
    }

    /// False if the file is dirty already.
    fn becomes_dirty(&mut self, object: Handle, base: Version, dropped: &mut Dropped) -> bool {
        if self.dirty.contains(&object) {
            return false;
        }
        self.leases.begin_change(&attrs(object));
        self.tables.drop_parts(&object, Parts::ATTRS, [], dropped);
        self.dirty.files.insert(object, File::new(base));
        true
    }

    /// Takes in bytes that are to be written again, below what is here. True if the file was clean
    /// before. What the kernel has to drop of it is left to whoever sweeps.
    pub fn restore(&mut self, undone: Undone) -> bool {
        let mut work = self.swept.take().unwrap_or_default();
        let first = self.becomes_dirty(undone.object, undone.base, &mut work.dropped);
        self.swept = Some(work);
        self.dirty.count(&undone.object, |file| {
            file.buffer.restore(undone.runs);
            // The last stays last: the opens of others may have been closed.
            for writer in undone.writers {
                file.writers.retain(|known| known.open != writer.open);
                file.writers.push(writer);
            }
            file.closing.extend(undone.closing);
            file.repeated = true;
            file.path = file.path.take().or(undone.path);
        });
        first
    }

    /// Closes a server's open once what was written through it is there; false if it need not wait.
    pub fn close_when_clean(&mut self, object: &Handle, open: OpenId) -> bool {
        let Some(file) = self.dirty.files.get_mut(object) else {
            return false;
        };
        let writes = file.writers.iter().any(|w| w.open == open);
        if writes {
            file.closing.push(open);
        }
        writes
    }

    /// Takes out everything that no round has taken: it will not be flushed.
    pub fn abandon(&mut self, object: &Handle, refusal: Refusal) -> Vec<Run> {
        let mut runs = Vec::new();
        self.dirty.count(object, |file| {
            runs = file.buffer.take_unsent();
            file.writers.iter().for_each(|w| w.written.failed(refusal));
        });
        runs
    }

    /// What a dirty file is, for people.
    pub fn dirty_file(&self, object: &Handle) -> Option<DirtyFile> {
        let file = self.dirty.files.get(object)?;
        Some(DirtyFile {
            path: file.path.clone(),
            size: file.buffer.size(),
        })
    }

    /// Where a dirty file is, as far as it is known.
    pub fn dirty_path(&self, object: &Handle) -> Option<PathBuf> {
        self.dirty.files.get(object)?.path.clone()
    }

    /// All bytes of a file that the server may not have. Copies them.
    pub fn buffered(&self, object: &Handle) -> Vec<Run> {
        let file = self.dirty.files.get(object);
        file.map_or(Vec::new(), |file| file.buffer.everything())
    }

    /// Where a file is that has just become dirty.
    pub fn dirty_at(&mut self, object: &Handle, path: Option<PathBuf>) {
        if let Some(file) = self.dirty.files.get_mut(object) {
            file.path = path;
        }
    }
}

#[cfg(test)]
mod tests;
