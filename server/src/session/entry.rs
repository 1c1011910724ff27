//! A change as its session remembers it.

use crate::records::token_size;
use leasefs_protocol::{Grant, Reply, Seq, Touched};
use std::sync::Arc;

#[derive(Debug)]
pub(super) enum State<J> {
    /// Followed by a change that is here, not here itself.
    Expected,
    /// It may have begun in the server's earlier life; not here itself.
    Interrupted,
    Held {
        job: J,
        missing: usize,
    },
    /// `again` if it may have begun in the server's earlier life.
    Waiting {
        again: bool,
    },
    Begun,
    Done(Arc<Reply>),
    Cancelled,
}

#[derive(Debug)]
pub(super) struct Entry<J, S> {
    pub(super) state: State<J>,
    pub(super) sink: Option<S>,
    pub(super) followers: Vec<Seq>,
}

impl<J, S> Entry<J, S> {
    /// What it takes once it is done.
    pub(super) fn bytes(&self) -> usize {
        let State::Done(reply) = &self.state else {
            return size_of::<Self>();
        };
        let token = token_size(&reply.result);
        let grants = reply.grants.capacity() * size_of::<Grant>();
        let touched = reply.touched.capacity() * size_of::<Touched>();
        size_of::<Self>() + size_of::<Reply>() + token + grants + touched
    }
}
