//! What each operation brings: how it is checked, what a change is about to do, what it asks of the host.
//!
//! What an operation touches stands apart, for all of them in one table ([`super::access`]).

mod attributes;
mod data;
mod explain;
pub(super) mod locks;
mod names;
pub(super) mod queries;

use super::Call;
use super::access::{Names, Targets};
use super::inputs::Inputs;
use crate::intent::{Intent, Place};
use crate::session::Opens;
use leasefs_protocol::control::IdentityPolicy;
use leasefs_protocol::{
    Attr, Change, Handle, Name, Operation, Parts, RawName, Refusal, Reply, Response, SET_IDS,
    SetAttr,
};
use leasefs_store::{OpenFile, Store};

/// A change, between its arrival and its answer.
pub trait Perform {
    /// Whether its arguments can be.
    ///
    /// # Errors
    /// What the host's kernel says of them.
    fn bounds(&self, _payload: usize) -> Result<(), Refusal> {
        Ok(())
    }

    /// Its names, checked, and its opens.
    ///
    /// # Errors
    /// Why they are none.
    fn inputs(&self, _opens: &Opens) -> Result<Inputs, Refusal> {
        Ok(Inputs::default())
    }

    /// What its names denote to its caller just now, besides what its opens are of.
    ///
    /// # Errors
    /// Why the caller may not do it.
    fn judge(&self, order: &Order<'_>, of_opens: Targets) -> Result<Targets, Refusal>;

    /// What it is about to do, its turn having come; `None` if it must fail, or succeed, without changing
    /// anything.
    ///
    /// # Errors
    /// If the state before can't be had; it must not run then.
    fn intent(&self, order: &Order<'_>, targets: &Targets) -> Result<Option<Intent>, Refusal>;

    /// Asks the host.
    ///
    /// # Errors
    /// What the host refuses it with.
    fn run(&self, order: &Order<'_>, targets: &Targets) -> Result<Done, Refusal>;

    /// Brings what it has done to the disk, if its answer must find it there.
    ///
    /// # Errors
    /// The disk's.
    fn commit(&self, _order: &Order<'_>) -> Result<(), Refusal> {
        Ok(())
    }

    /// Whether the host may take long, as a rule.
    fn is_slow(&self) -> bool {
        false
    }

    /// Whether the client's kernel keeps pages locked until the answer.
    fn is_writeback(&self) -> bool {
        false
    }

    /// Whether the client's kernel holds back until the answer what an approval may have to wait for.
    fn goes_first(&self) -> bool {
        self.is_writeback()
    }

    /// What is noted when it has been answered.
    fn answered(&self, _order: &Order<'_>, _targets: &Targets, _reply: &Reply) {}

    /// Whether it brings what was kept back under a lease, and too late.
    fn lateness(&self, _order: &Order<'_>, _targets: &Targets) -> Lateness {
        Lateness::InTime
    }
}

/// How bytes come that were kept back under a lease.
pub enum Lateness {
    InTime,
    /// The lease has ended, and they may be older than what others have written since.
    TooLate,
    /// So it is, but the file holds them: the server's process crashed before it could answer. Others
    /// may have written since, so nothing is said of what the file is, and no lease is granted.
    Repeated(u64),
}

/// The operation of a change.
pub fn operation(change: &Change) -> &(dyn Perform + Send + Sync) {
    match change {
        Change::SetAttr(operation) => operation,
        Change::Make(operation) => operation,
        Change::Unlink(operation) => operation,
        Change::Rmdir(operation) => operation,
        Change::Rename(operation) => operation,
        Change::Link(operation) => operation,
        Change::OpenTruncated(operation) => operation,
        Change::Create(operation) => operation,
        Change::Write(operation) => operation,
        Change::Fallocate(operation) => operation,
        Change::CopyRange(operation) => operation,
        Change::SetXattr(operation) => operation,
        Change::RemoveXattr(operation) => operation,
    }
}

/// With what a change is done.
pub struct Order<'a> {
    /// On whose behalf.
    pub call: &'a Call,
    /// Its arguments.
    pub inputs: &'a Inputs,
    /// Its data.
    pub payload: &'a [u8],
    /// Whether it may have been carried out before.
    pub resent: bool,
}

impl Order<'_> {
    fn store(&self) -> &Store {
        &self.call.server.store
    }

    /// Whether all callers of the client are one user. No program takes on his rights then: honest clients see to that, and another
    /// one could leave him a way to them on this host.
    fn is_of_one_user(&self) -> bool {
        self.call.client.policy_shown() == IdentityPolicy::Squash
    }

    /// The mode of something new that isn't a directory.
    fn mode_of_new(&self, mode: u32) -> u32 {
        match self.is_of_one_user() {
            true => mode & !u32::from(SET_IDS),
            false => mode,
        }
    }

    /// What may be set of an object.
    fn may_set(&self, object: &Handle, set: SetAttr) -> Result<SetAttr, Refusal> {
        let sets_ids = |mode: &u16| mode & SET_IDS != 0;
        let Some(mode) = set.mode.filter(sets_ids).filter(|_| self.is_of_one_user()) else {
            return Ok(set);
        };
        let kind = self.store().getattr(object)?.kind;
        Ok(SetAttr {
            mode: Some(kind.without_set_ids(mode)),
            ..set
        })
    }

    fn open(&self) -> Result<&OpenFile, Refusal> {
        self.inputs.open.as_deref().ok_or(Refusal::BadOpen)
    }

    /// Whether set-id bits go with what is written: root keeps them. Who writes by a descriptor that root has opened needn't be root.
    fn kills_priv(&self) -> Result<bool, Refusal> {
        Ok(self.call.identity()?.uid() != 0)
    }

    fn name(&self) -> Result<&Name, Refusal> {
        self.inputs.names.name.as_ref().ok_or(Refusal::Invalid)
    }

    fn new_name(&self) -> Result<&Name, Refusal> {
        self.inputs.names.new_name.as_ref().ok_or(Refusal::Invalid)
    }
}

/// What the host said to a change.
pub struct Done {
    /// The answer.
    pub response: Response,
    /// Attributes after the change, as far as the host told them along the way.
    pub known: Option<(Handle, Attr)>,
    /// What the answer shows of that object, if it isn't one that was touched.
    pub shown: Parts,
    /// What its sender would have exclusively from now on.
    pub keeps: Option<Handle>,
}

impl Done {
    /// The answer of this operation.
    fn of<O: Operation>(_: &O, answer: O::Answer) -> Self {
        Self {
            response: answer.into(),
            known: None,
            shown: Parts::ATTRS,
            keeps: None,
        }
    }

    fn knowing(self, object: Handle, attr: Attr) -> Self {
        Self {
            known: Some((object, attr)),
            ..self
        }
    }
}

fn named(name: &RawName) -> Result<Inputs, Refusal> {
    let names = Names {
        name: Some(Name::try_from(name)?),
        new_name: None,
    };
    Ok(Inputs {
        names,
        ..Inputs::default()
    })
}

fn at(dir: Handle, name: &Name) -> Place {
    Place {
        dir,
        name: name.to_raw(),
    }
}

fn repeatable(objects: impl IntoIterator<Item = Handle>) -> Intent {
    Intent::Repeatable {
        objects: objects.into_iter().collect(),
    }
}
