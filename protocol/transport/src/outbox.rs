//! A queue in front of a stream: many tasks put frames in, one task sends them.

use crate::frame::{FrameWriter, Held, OutFrame};
use crate::prompt;
use leasefs_protocol::limits::MAX_LANE_QUEUE;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// Bytes given to QUIC in one go.
const BATCH: usize = 2 << 20;

/// The stream is gone: what is put in now, and what was not sent yet, is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream is gone")]
pub struct OutboxClosed;

/// Puts frames into the queue of a stream. Cheap to clone; the stream is finished when the last
/// clone is gone and everything is sent.
#[derive(Clone, Debug)]
pub struct Outbox {
    queue: Arc<Queue>,
    /// Its end tells the sending task that nothing more comes.
    _open: Arc<Open>,
}

#[derive(Debug)]
struct Open(Arc<Queue>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.filled.notify_one();
    }
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    filled: Notify,
    emptied: Notify,
}

#[derive(Debug, Default)]
struct State {
    frames: Vec<OutFrame>,
    bytes: usize,
    ended: bool,
    closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere can't leave the state half changed: every section only moves values.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, frame: OutFrame) -> Result<(), OutboxClosed> {
        let mut state = self.lock();
        if state.closed {
            return Err(OutboxClosed);
        }
        state.bytes += frame.len();
        state.frames.push(frame);
        let first = state.frames.len() == 1;
        drop(state);
        if first {
            self.filled.notify_one();
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        let state = self.lock();
        state.bytes <= MAX_LANE_QUEUE || state.closed
    }

    /// Frames to send now; `None` when nothing more comes.
    async fn next_batch(&self) -> Option<Vec<OutFrame>> {
        loop {
            let filled = self.filled.notified();
            {
                let mut state = self.lock();
                if !state.frames.is_empty() {
                    return Some(state.take_batch());
                }
                if state.ended {
                    return None;
                }
            }
            filled.await;
        }
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.frames.clear();
        state.bytes = 0;
        drop(state);
        self.emptied.notify_waiters();
    }
}

impl State {
    fn take_batch(&mut self) -> Vec<OutFrame> {
        let mut bytes = 0;
        let fits = |frame: &&OutFrame| {
            let first = bytes == 0;
            bytes += frame.len();
            first || bytes <= BATCH
        };
        let count = self.frames.iter().take_while(fits).count();
        let batch: Vec<OutFrame> = match count == self.frames.len() {
            true => std::mem::take(&mut self.frames),
            false => self.frames.drain(..count).collect(),
        };
        self.bytes -= batch.iter().map(OutFrame::len).sum::<usize>();
        batch
    }
}

impl FrameWriter {
    /// Hands the stream to a task that sends what is put into the outbox, many frames at a time.
    /// Must be called within a tokio runtime.
    pub fn into_outbox(self) -> Outbox {
        Outbox::start(self)
    }
}

impl Outbox {
    fn start(writer: FrameWriter) -> Self {
        let queue = Arc::new(Queue::default());
        prompt::spawn(&Handle::current(), run(queue.clone(), writer));
        Self {
            _open: Arc::new(Open(queue.clone())),
            queue,
        }
    }

    /// Puts a frame in without waiting, whatever waits there already: for messages whose number
    /// is bounded otherwise.
    ///
    /// # Errors
    /// If the stream is gone.
    pub fn push(&self, frame: OutFrame) -> Result<(), OutboxClosed> {
        self.queue.put(frame)
    }

    /// Puts a frame in, after waiting while more than 4 MiB are queued. Cancel-safe: the frame
    /// is put in whole or not at all.
    ///
    /// # Errors
    /// If the stream is gone.
    pub async fn send(&self, frame: OutFrame) -> Result<(), OutboxClosed> {
        loop {
            let emptied = self.queue.emptied.notified();
            if self.queue.has_room() {
                return self.queue.put(frame);
            }
            emptied.await;
        }
    }

    /// Bytes that wait to be given to QUIC.
    pub fn queued(&self) -> usize {
        self.queue.lock().bytes
    }
}

async fn run(queue: Arc<Queue>, mut writer: FrameWriter) {
    while let Some(mut batch) = queue.next_batch().await {
        queue.emptied.notify_waiters();
        // Until QUIC has taken the frames.
        let _held: Vec<Held> = batch.iter_mut().filter_map(OutFrame::release).collect();
        if writer.send_frames(batch).await.is_err() {
            return queue.close();
        }
    }
    writer.finish();
}
