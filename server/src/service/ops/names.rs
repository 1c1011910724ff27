//! Changes of names. Each is looked up with its caller's rights, whatever the change.

use super::{Done, Order, Perform, at, named, repeatable};
use crate::intent::{Intent, Leaves, OpenAs};
use crate::service::access::{Names, O_EXCL, Targets};
use crate::service::inputs::{Inputs, O_ACCMODE, symlink};
use crate::session::Opens;
use leasefs_protocol::answer::{Created, Object};
use leasefs_protocol::change::{Create, Link, Make, Rename, Rmdir, Unlink, What};
use leasefs_protocol::{Handle, Name, O_TRUNC, Parts, Refusal};
use leasefs_store::{Found, Kind, Node};

const EEXIST: Refusal = Refusal::Host(libc::EEXIST as u16);
const NOREPLACE: u32 = libc::RENAME_NOREPLACE;
const EXCHANGE: u32 = libc::RENAME_EXCHANGE;
const WHITEOUT: u32 = libc::RENAME_WHITEOUT;

impl Targets {
    /// What a name in a directory denotes. Who may not list that gets no lease on its names.
    fn found_in(&mut self, dir: &Handle, found: &Found) -> Option<Handle> {
        if !found.lists {
            self.unlisted.push(*dir);
        }
        found.node.map(|node| node.handle)
    }

    /// What may lose its last name is sheltered while it is open.
    fn sheltering(mut self, order: &Order<'_>, victim: Option<Handle>) -> Self {
        self.shelter = victim.and_then(|victim| order.store().needs_shelter(&victim));
        self
    }
}

impl Order<'_> {
    /// Those who had the victim open may have closed it for this change's sake.
    fn prepare_shelter(&self, targets: &Targets, victim: Option<Handle>) {
        let store = self.store();
        if targets.shelter.is_some()
            && let Some(victim) = victim
            && store.needs_shelter(&victim).is_some()
        {
            store.make_shelter();
        }
    }
}

impl Perform for Make {
    fn bounds(&self, _: usize) -> Result<(), Refusal> {
        match &self.make {
            What::Symlink { target } => symlink(target),
            What::Directory | What::Node { .. } => Ok(()),
        }
    }

    fn inputs(&self, _: &Opens) -> Result<Inputs, Refusal> {
        named(&self.name)
    }

    fn judge(&self, order: &Order<'_>, mut targets: Targets) -> Result<Targets, Refusal> {
        let who = order.call.identity()?;
        let found = order.store().may_make(&who, &self.dir, order.name()?)?;
        match targets.found_in(&self.dir, &found) {
            Some(_) => Err(EEXIST),
            None => Ok(targets),
        }
    }

    fn intent(&self, order: &Order<'_>, _: &Targets) -> Result<Option<Intent>, Refusal> {
        // Else it was refused before its turn.
        made_at(order, self.dir)
    }

    fn run(&self, order: &Order<'_>, _: &Targets) -> Result<Done, Refusal> {
        let (who, name) = (order.call.identity()?, order.name()?);
        let kind = match &self.make {
            What::Directory => Kind::Directory,
            What::Node { rdev } => Kind::Node { rdev: *rdev },
            What::Symlink { target } => Kind::Symlink { target: &target.0 },
        };
        let mode = match self.make {
            What::Directory => self.mode,
            What::Node { .. } | What::Symlink { .. } => order.mode_of_new(self.mode),
        };
        let store = order.store();
        let node = store.make(&who, &self.dir, name, mode, self.umask, kind)?;
        // A new directory is empty.
        let shown = match self.make {
            What::Directory => Parts::ATTRS | Parts::NAMES,
            What::Node { .. } | What::Symlink { .. } => Parts::ATTRS,
        };
        Ok(Done {
            shown,
            ..Done::of(self, object(node)).knowing(node.handle, node.attr)
        })
    }
}

impl Perform for Link {
    fn inputs(&self, _: &Opens) -> Result<Inputs, Refusal> {
        named(&self.name)
    }

    fn judge(&self, order: &Order<'_>, mut targets: Targets) -> Result<Targets, Refusal> {
        let (who, name) = (order.call.identity()?, order.name()?);
        let store = order.store();
        let found = store.may_link(&who, &self.object, &self.dir, name)?;
        targets.found_in(&self.dir, &found);
        Ok(targets)
    }

    fn intent(&self, order: &Order<'_>, _: &Targets) -> Result<Option<Intent>, Refusal> {
        made_at(order, self.dir)
    }

    fn run(&self, order: &Order<'_>, _: &Targets) -> Result<Done, Refusal> {
        let (who, name) = (order.call.identity()?, order.name()?);
        let store = order.store();
        let node = store.link(&who, &self.object, &self.dir, name)?;
        Ok(Done::of(self, object(node)).knowing(node.handle, node.attr))
    }
}

fn made_at(order: &Order<'_>, dir: Handle) -> Result<Option<Intent>, Refusal> {
    Ok(Some(Intent::Make {
        at: at(dir, order.name()?),
        open: None,
    }))
}

fn object(Node { handle, attr }: Node) -> Object {
    Object { handle, attr }
}

fn removed_at(
    order: &Order<'_>,
    dir: Handle,
    targets: &Targets,
) -> Result<Option<Intent>, Refusal> {
    let at = at(dir, order.name()?);
    Ok(targets.named.map(|object| Intent::Remove { at, object }))
}

impl Perform for Unlink {
    fn inputs(&self, _: &Opens) -> Result<Inputs, Refusal> {
        named(&self.name)
    }

    fn judge(&self, order: &Order<'_>, mut targets: Targets) -> Result<Targets, Refusal> {
        let who = order.call.identity()?;
        let found = order.store().may_unlink(&who, &self.dir, order.name()?)?;
        targets.named = targets.found_in(&self.dir, &found);
        let victim = targets.named;
        Ok(targets.sheltering(order, victim))
    }

    fn intent(&self, order: &Order<'_>, targets: &Targets) -> Result<Option<Intent>, Refusal> {
        removed_at(order, self.dir, targets)
    }

    fn run(&self, order: &Order<'_>, targets: &Targets) -> Result<Done, Refusal> {
        let (who, name) = (order.call.identity()?, order.name()?);
        order.prepare_shelter(targets, targets.named);
        let victim = targets.named.as_ref();
        order.store().unlink(&who, &self.dir, name, victim)?;
        Ok(Done::of(self, ()))
    }
}

impl Perform for Rmdir {
    fn inputs(&self, _: &Opens) -> Result<Inputs, Refusal> {
        named(&self.name)
    }

    fn judge(&self, order: &Order<'_>, mut targets: Targets) -> Result<Targets, Refusal> {
        let who = order.call.identity()?;
        let found = order.store().may_unlink(&who, &self.dir, order.name()?)?;
        targets.named = targets.found_in(&self.dir, &found);
        Ok(targets)
    }

    fn intent(&self, order: &Order<'_>, targets: &Targets) -> Result<Option<Intent>, Refusal> {
        removed_at(order, self.dir, targets)
    }

    fn run(&self, order: &Order<'_>, _: &Targets) -> Result<Done, Refusal> {
        let (who, name) = (order.call.identity()?, order.name()?);
        order.store().rmdir(&who, &self.dir, name)?;
        Ok(Done::of(self, ()))
    }
}

/// What a rename takes the last name of, maybe.
fn replaced(rename: &Rename, targets: &Targets) -> Option<Handle> {
    targets.replaced.filter(|_| rename.flags & !WHITEOUT == 0)
}

impl Perform for Rename {
    fn inputs(&self, _: &Opens) -> Result<Inputs, Refusal> {
        let names = Names {
            name: Some(Name::try_from(&self.name)?),
            new_name: Some(Name::try_from(&self.new_name)?),
        };
        Ok(Inputs {
            names,
            ..Inputs::default()
        })
    }

    fn judge(&self, order: &Order<'_>, mut targets: Targets) -> Result<Targets, Refusal> {
        let who = order.call.identity()?;
        let (from, to) = (
            (&self.dir, order.name()?),
            (&self.new_dir, order.new_name()?),
        );
        let (old, new) = order.store().may_rename(&who, from, to, self.flags)?;
        targets.named = targets.found_in(&self.dir, &old);
        targets.replaced = targets.found_in(&self.new_dir, &new);
        let victim = replaced(self, &targets);
        Ok(targets.sheltering(order, victim))
    }

    fn intent(&self, order: &Order<'_>, targets: &Targets) -> Result<Option<Intent>, Refusal> {
        let (old, new) = (targets.named, targets.replaced);
        // Whether the names denote what it changes anything of.
        let allowed = match self.flags & !WHITEOUT {
            NOREPLACE => new.is_none(),
            EXCHANGE => new.is_some(),
            _ => true,
        };
        let Some(object) = old.filter(|_| allowed && old != new) else {
            return Ok(None);
        };
        Ok(Some(Intent::Rename {
            from: at(self.dir, order.name()?),
            to: at(self.new_dir, order.new_name()?),
            object,
            replaced: new,
            leaves: match self.flags {
                flags if flags & EXCHANGE != 0 => Leaves::Replaced,
                flags if flags & WHITEOUT != 0 => Leaves::Whiteout,
                _ => Leaves::Nothing,
            },
        }))
    }

    fn run(&self, order: &Order<'_>, targets: &Targets) -> Result<Done, Refusal> {
        let (who, name, new_name) = (order.call.identity()?, order.name()?, order.new_name()?);
        order.prepare_shelter(targets, replaced(self, targets));
        let (from, to) = ((&self.dir, name), (&self.new_dir, new_name));
        order.store().rename(&who, from, to, self.flags)?;
        Ok(Done::of(self, ()))
    }
}

/// Makes a file and opens it; opens what its name denotes if that exists.
impl Perform for Create {
    fn inputs(&self, _: &Opens) -> Result<Inputs, Refusal> {
        named(&self.name)
    }

    fn judge(&self, order: &Order<'_>, mut targets: Targets) -> Result<Targets, Refusal> {
        let (who, store) = (order.call.identity()?, order.store());
        let found = store.may_make(&who, &self.dir, order.name()?)?;
        targets.named = targets.found_in(&self.dir, &found);
        if let Some(named) = &targets.named
            && self.flags & O_TRUNC != 0
            && self.flags & O_EXCL == 0
        {
            store.may_truncate(&who, named, self.flags)?;
        }
        Ok(targets)
    }

    fn intent(&self, order: &Order<'_>, targets: &Targets) -> Result<Option<Intent>, Refusal> {
        Ok(Some(match targets.named {
            Some(named) => repeatable([named]),
            None => Intent::Make {
                at: at(self.dir, order.name()?),
                open: Some(OpenAs {
                    flags: self.flags,
                    policy: order.call.client.identity,
                    caller: order.call.caller.clone(),
                }),
            },
        }))
    }

    fn run(&self, order: &Order<'_>, targets: &Targets) -> Result<Done, Refusal> {
        let (call, who, name) = (order.call, order.call.identity()?, order.name()?);
        let created = match targets.named {
            Some(handle) => call.open_existing(handle, self.flags)?,
            None => {
                let place = call.session.opens.account().open()?;
                let (mode, flags) = (order.mode_of_new(self.mode), self.flags);
                let store = order.store();
                let made = store.create(&who, &self.dir, name, mode, self.umask, flags)?;
                let Node { handle, attr } = made.node;
                let (open, token) = call.add_open(made.open, place)?;
                Created {
                    handle,
                    attr,
                    open,
                    token,
                }
            }
        };
        let (handle, attr) = (created.handle, created.attr);
        let keeps = self.keep && self.flags & O_ACCMODE != 0;
        Ok(Done {
            keeps: keeps.then_some(handle),
            ..Done::of(self, created).knowing(handle, attr)
        })
    }

    fn is_slow(&self) -> bool {
        self.flags & O_TRUNC != 0
    }
}
