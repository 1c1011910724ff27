//! What a session has open.

use crate::account::{Account, FilePlace};
use crate::sync;
use leasefs_protocol::{Handle, OpenId, Refusal, RequestId, Seq};
use leasefs_store::OpenFile;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// A request as it came on a connection. Asked again on a later one, its answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The connection; a later one has a larger number.
    pub link: u64,
    /// The request, numbered by the client once for all connections.
    pub request: RequestId,
}

/// The numbers of opens in one life of the server. None is given twice, not to two sessions either: what a client has asked by a number
/// may still be on its way when its session has begun anew.
#[derive(Debug)]
pub struct OpenNumbers {
    first: u64,
    next: AtomicU64,
}

impl OpenNumbers {
    /// Those of another life, of which opens are still to be reclaimed, are others.
    pub fn of_life(life: u32) -> Arc<Self> {
        let first = u64::from(life) << 40 | 1;
        let next = AtomicU64::new(first);
        Arc::new(Self { first, next })
    }
}

/// The opens of one session. Closing a file may block: what opens or takes out is done on an I/O
/// thread.
#[derive(Debug)]
pub struct Opens {
    account: Arc<Account>,
    table: RwLock<Table>,
    numbers: Arc<OpenNumbers>,
    /// Opens made by changes of the server's earlier life, whose answers may not have come.
    kept: Mutex<HashMap<OpenId, (Seq, Open)>>,
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<OpenId, Open>,
    /// How many of them may write to an object.
    writers: HashMap<Handle, usize>,
    /// Opens that an unnumbered request made. Such a request is sent again if its answer was lost
    /// with the connection; the client never hears of the first open then.
    asked: HashMap<RequestId, (u64, OpenId)>,
    /// The session is over.
    ended: bool,
}

#[derive(Debug)]
struct Open {
    file: Arc<OpenFile>,
    asked: Option<RequestId>,
}

impl Table {
    fn insert(&mut self, id: OpenId, open: Open) {
        if open.file.writes() {
            *self.writers.entry(*open.file.handle()).or_default() += 1;
        }
        self.files.insert(id, open);
    }

    fn remove(&mut self, id: OpenId) -> Option<Arc<OpenFile>> {
        let Open { file, asked, .. } = self.files.remove(&id)?;
        if file.writes() {
            let writers = self.writers.entry(*file.handle());
            debug_assert!(
                matches!(writers, Entry::Occupied(_)),
                "{id:?} isn't counted"
            );
            if let Entry::Occupied(mut writers) = writers {
                *writers.get_mut() -= 1;
                if *writers.get() == 0 {
                    writers.remove();
                }
            }
        }
        if let Some(request) = asked
            && self.asked.get(&request).is_some_and(|(_, of)| *of == id)
        {
            self.asked.remove(&request);
        }
        Some(file)
    }

    /// Takes out the open that an earlier copy of the request has made.
    ///
    /// # Errors
    /// If a later copy has made one.
    fn supersede(&mut self, origin: Origin) -> Result<Option<Arc<OpenFile>>, Refusal> {
        match self.asked.get(&origin.request).copied() {
            Some((link, _)) if link > origin.link => Err(Refusal::BadOpen),
            Some((link, id)) if link < origin.link => Ok(self.remove(id)),
            _ => Ok(None),
        }
    }
}

impl Opens {
    /// None yet.
    pub fn new(numbers: &Arc<OpenNumbers>, account: Arc<Account>) -> Self {
        Self {
            account,
            table: RwLock::default(),
            numbers: Arc::clone(numbers),
            kept: Mutex::default(),
        }
    }

    /// Whose they are counted for: an open has its place there before the host is asked for it.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// A number for an open of this life.
    pub fn new_id(&self) -> OpenId {
        OpenId(self.numbers.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether the number was given in this life: then the open stands, or has been closed.
    pub fn is_of_this_life(&self, id: OpenId) -> bool {
        let OpenNumbers { first, next } = &*self.numbers;
        (*first..next.load(Ordering::Relaxed)).contains(&id.0)
    }

    /// Keeps an open that a change of the server's earlier life has made, until the client claims
    /// it or is known to have the change's answer.
    pub fn keep(&self, id: OpenId, seq: Seq, file: Arc<OpenFile>, place: FilePlace) {
        file.count_by(place);
        let open = Open { file, asked: None };
        sync::lock(&self.kept).insert(id, (seq, open));
    }

    /// The client has or wants the open with this number. Whether there is one.
    pub fn claim(&self, id: OpenId) -> bool {
        let kept = sync::lock(&self.kept).remove(&id);
        match kept {
            Some((_, open)) => self.put(id, open),
            None => self.has(id),
        }
    }

    /// Takes out what was kept for changes below `low` and not claimed: the client has closed it.
    #[must_use = "they are to be closed, which may block"]
    pub fn unclaimed(&self, low: Seq) -> Vec<Arc<OpenFile>> {
        let mut kept = sync::lock(&self.kept);
        let gone = kept.extract_if(|_, (seq, _)| *seq < low);
        gone.map(|(_, (_, open))| open.file).collect()
    }

    /// Numbers a new open. `origin` is the unnumbered request that asked for it, if it was one:
    /// the open that an earlier copy of it made is closed.
    ///
    /// # Errors
    /// [`Refusal::BadOpen`] if nobody waits for it any more; the file is closed then.
    pub fn add(
        &self,
        file: Arc<OpenFile>,
        place: FilePlace,
        origin: Option<Origin>,
    ) -> Result<OpenId, Refusal> {
        file.count_by(place);
        let (added, gone) = self.try_add(&file, origin);
        if let Some(gone) = gone {
            gone.close();
        }
        if added.is_err() {
            file.close();
        }
        added
    }

    fn try_add(
        &self,
        file: &Arc<OpenFile>,
        origin: Option<Origin>,
    ) -> (Result<OpenId, Refusal>, Option<Arc<OpenFile>>) {
        let mut table = sync::write(&self.table);
        let gone = match origin.map(|origin| table.supersede(origin)).transpose() {
            Ok(gone) => gone.flatten(),
            Err(refusal) => return (Err(refusal), None),
        };
        if table.ended {
            return (Err(Refusal::BadOpen), gone);
        }
        loop {
            let id = self.new_id();
            if !table.files.contains_key(&id) {
                let open = Open {
                    file: Arc::clone(file),
                    asked: origin.map(|origin| origin.request),
                };
                table.insert(id, open);
                if let Some(Origin { link, request }) = origin {
                    table.asked.insert(request, (link, id));
                }
                return (Ok(id), gone);
            }
        }
    }

    /// Takes back an open under its number; `false` if that is taken.
    pub fn restore(&self, id: OpenId, file: Arc<OpenFile>, place: FilePlace) -> bool {
        file.count_by(place);
        self.put(id, Open { file, asked: None })
    }

    fn put(&self, id: OpenId, open: Open) -> bool {
        let mut table = sync::write(&self.table);
        let restores = !table.ended && !table.files.contains_key(&id);
        if restores {
            table.insert(id, open);
        }
        restores
    }

    /// The open with this number.
    ///
    /// # Errors
    /// [`Refusal::BadOpen`].
    pub fn get(&self, id: OpenId) -> Result<Arc<OpenFile>, Refusal> {
        let table = sync::read(&self.table);
        let open = table.files.get(&id).ok_or(Refusal::BadOpen)?;
        Ok(Arc::clone(&open.file))
    }

    /// Whether there is an open with this number.
    pub fn has(&self, id: OpenId) -> bool {
        sync::read(&self.table).files.contains_key(&id)
    }

    /// Whether an open of the object may write to it.
    pub fn write_to(&self, object: &Handle) -> bool {
        sync::read(&self.table).writers.contains_key(object)
    }

    /// What is open.
    pub fn objects(&self) -> HashSet<Handle> {
        let table = sync::read(&self.table);
        table
            .files
            .values()
            .map(|open| *open.file.handle())
            .collect()
    }

    /// Takes opens out; unknown ones are passed over.
    #[must_use = "they are to be closed, which may block"]
    pub fn take(&self, ids: &[OpenId]) -> Vec<Arc<OpenFile>> {
        let mut table = sync::write(&self.table);
        ids.iter().filter_map(|id| table.remove(*id)).collect()
    }

    /// Takes all out; none comes any more.
    #[must_use = "they are to be closed, which may block"]
    pub fn end(&self) -> Vec<Arc<OpenFile>> {
        let kept = std::mem::take(&mut *sync::lock(&self.kept));
        let mut table = sync::write(&self.table);
        table.ended = true;
        table.asked.clear();
        table.writers.clear();
        let files = std::mem::take(&mut table.files);
        let kept = kept.into_values().map(|(_, open)| open.file);
        files
            .into_values()
            .map(|open| open.file)
            .chain(kept)
            .collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        sync::read(&self.table).files.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The clients of these opens have closed them. May block.
pub fn close(files: Vec<Arc<OpenFile>>) {
    files.into_iter().for_each(OpenFile::close);
}
