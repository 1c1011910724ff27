//! Requests that change nothing.

use super::Call;
use super::inputs::Inputs;
use super::ops::{locks, queries};
use super::told::{Told, enter, is_gone};
use crate::runtime::{Admission, Entry, Pending};
use bytes::Bytes;
use leasefs_lease::server::LockAnswer;
use leasefs_protocol::{Grant, Query, Refusal, Reply, RequestId, Response, Stamp};
use leasefs_store::OpenFile;

/// A request that has entered the lease core.
#[derive(Debug)]
pub struct Read {
    call: Call,
    query: Query,
    inputs: Inputs,
    entry: Entry,
    /// Of what is asked of locks.
    lock: Option<Pending<LockAnswer>>,
}

/// The answer to a request, but for where it goes.
#[derive(Debug)]
pub struct Answer {
    /// The answer.
    pub reply: Reply,
    /// Its data.
    pub payload: Bytes,
}

/// Takes a request as far as it goes without blocking.
///
/// # Errors
/// The answer, if it needs nothing more.
pub fn begin(call: Call, query: Query) -> Result<Read, Box<Answer>> {
    let inputs = match checked(&call, &query) {
        Ok(inputs) => inputs,
        Err(refusal) => {
            let answer = answer(Err(refusal), Vec::new());
            return Err(Box::new(answer));
        }
    };
    let lock = locks_begin(&call, &query, &inputs)?;
    let entry = match query {
        // Whether the caller may look is for the host to say first.
        Query::Lookup(_) => Entry::Now(Admission { grants: Vec::new() }),
        _ => enter(&call, &query, &inputs, &inputs.targets()),
    };
    Ok(Read {
        call,
        query,
        inputs,
        entry,
        lock,
    })
}

/// Has the lease core decide what is asked of locks.
///
/// # Errors
/// The answer, if it has decided.
fn locks_begin(
    call: &Call,
    query: &Query,
    inputs: &Inputs,
) -> Result<Option<Pending<LockAnswer>>, Box<Answer>> {
    let told = |decided| Box::new(answer(decided, Vec::new()));
    let asked = locks::ask_of(query, inputs).map_err(|refusal| told(Err(refusal)))?;
    let Some(asked) = asked else {
        return Ok(None);
    };
    // Who is shut out gets no lock; nobody listens to what it is told.
    let pass = call.session.gate.enter();
    let _pass = pass.ok_or_else(|| told(Err(Refusal::Cancelled)))?;
    match locks::ask(call, query, asked) {
        Entry::Now(decided) => Err(told(locks::answered(call, decided))),
        Entry::Later(pending) => Ok(Some(pending)),
    }
}

fn checked(call: &Call, query: &Query) -> Result<Inputs, Refusal> {
    queries::role(query, call.client.read_only)?;
    queries::bounds(query)?;
    query
        .handle()
        .map_or(Ok(()), |object| call.server.store.check(object))?;
    queries::inputs(query, &call.session.opens)
}

impl Read {
    /// The answer, if it is file data that the host's page cache has. Never blocks.
    pub fn cached(&mut self) -> Option<Answer> {
        let (Query::Read(asked), Entry::Now(admission)) = (&self.query, &mut self.entry) else {
            return None;
        };
        let _pass = self.call.session.gate.enter()?;
        let told = queries::read_cached(&self.call, asked, self.inputs.open.as_deref()?)?;
        let admission = Admission {
            grants: std::mem::take(&mut admission.grants),
        };
        Some(settle(&self.call, told, admission))
    }

    /// Whether it waits for others: the lease core holds it back.
    pub fn waits(&self) -> bool {
        self.lock.is_some() || matches!(self.entry, Entry::Later(_))
    }

    /// Waits for others; `None` if the server ends before.
    pub async fn ready(mut self) -> Option<Self> {
        self.entry = Entry::Now(self.entry.decided().await?);
        Some(self)
    }

    /// The answer; blocks, and waits while the lease core holds the request back. `None` if the
    /// server ends before, or the client is shut out.
    pub async fn answer(self) -> Option<Answer> {
        if let Some(lock) = self.lock {
            let decided = lock.decided().await?;
            return Some(answer(locks::answered(&self.call, decided), Vec::new()));
        }
        let admission = self.entry.decided().await?;
        let _pass = self.call.session.gate.enter()?;
        let open = self.inputs.open.as_deref();
        // An open says itself what it authorises, but not what else is to be found by it.
        let listed = match self.query {
            Query::ReadDir(_) => open.map(OpenFile::handle),
            _ => None,
        };
        let told = match self.call.within_border(self.query.handle().or(listed)) {
            Ok(()) => queries::run(&self.call, &self.query, &self.inputs, &admission).await?,
            Err(refusal) => Err(refusal),
        };
        Some(settle(&self.call, told, admission))
    }
}

/// Puts the answer together. Where the object is gone its leases are given back, since no reply
/// tells the client of them.
fn settle(call: &Call, told: Result<Told, Refusal>, admission: Admission) -> Answer {
    let Admission { mut grants } = admission;
    match told {
        Ok(told) => {
            grants.extend(told.grants);
            Answer {
                payload: told.payload,
                ..answer(Ok(told.response), grants)
            }
        }
        Err(refusal) => {
            if is_gone(refusal) {
                call.server.leases.take_back(call.session.id, &grants);
                grants.clear();
            }
            // A refusal may be cached too: that there is no such xattr. Whoever has the handle may have
            // the lease on attributes, and by now nothing else is refused.
            answer(Err(refusal), grants)
        }
    }
}

fn answer(result: Result<Response, Refusal>, grants: Vec<Grant>) -> Answer {
    let reply = Reply {
        id: RequestId(0),
        renews: false,
        stamp: Stamp(0),
        grants,
        touched: Vec::new(),
        room: None,
        result,
    };
    Answer {
        reply,
        payload: Bytes::new(),
    }
}
