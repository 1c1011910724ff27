//! Changes of one object that is named by its handle.

use super::{Done, Order, Perform, repeatable};
use crate::intent::Intent;
use crate::service::access::Targets;
use crate::service::inputs::{Inputs, at_most, xattr_name};
use crate::session::Opens;
use leasefs_protocol::change::{OpenTruncated, RemoveXattr, SetAttr, SetXattr};
use leasefs_protocol::limits::MAX_XATTR_VALUE;
use leasefs_protocol::{O_TRUNC, Refusal};

const E2BIG: Refusal = Refusal::Host(libc::E2BIG as u16);
const XATTR_CREATE: u32 = libc::XATTR_CREATE as u32;
const ACL: &[u8] = b"system.posix_acl_";

impl Perform for SetAttr {
    fn inputs(&self, opens: &Opens) -> Result<Inputs, Refusal> {
        Ok(Inputs {
            open: self.open.map(|open| opens.get(open)).transpose()?,
            ..Inputs::default()
        })
    }

    fn judge(&self, order: &Order<'_>, of_opens: Targets) -> Result<Targets, Refusal> {
        let (who, open) = (order.call.identity()?, order.inputs.open.as_deref());
        let store = order.store();
        store.may_set(&who, &self.object, open, &self.set)?;
        Ok(of_opens)
    }

    fn intent(&self, _: &Order<'_>, _: &Targets) -> Result<Option<Intent>, Refusal> {
        Ok(Some(repeatable([self.object])))
    }

    fn run(&self, order: &Order<'_>, _: &Targets) -> Result<Done, Refusal> {
        let (who, open) = (order.call.identity()?, order.inputs.open.as_deref());
        let set = order.may_set(&self.object, self.set)?;
        let attr = order.store().setattr(&who, &self.object, open, &set)?;
        Ok(Done::of(self, attr).knowing(self.object, attr))
    }

    fn is_slow(&self) -> bool {
        self.set.size.is_some()
    }

    /// While a size changes the kernel holds back what it has to write.
    fn goes_first(&self) -> bool {
        self.set.size.is_some()
    }
}

impl Perform for OpenTruncated {
    fn judge(&self, order: &Order<'_>, of_opens: Targets) -> Result<Targets, Refusal> {
        let (who, flags) = (order.call.identity()?, self.flags.bits() | O_TRUNC);
        order.store().may_truncate(&who, &self.object, flags)?;
        Ok(of_opens)
    }

    fn intent(&self, _: &Order<'_>, _: &Targets) -> Result<Option<Intent>, Refusal> {
        Ok(Some(repeatable([self.object])))
    }

    fn run(&self, order: &Order<'_>, _: &Targets) -> Result<Done, Refusal> {
        let flags = self.flags.bits() | O_TRUNC;
        let opened = order.call.open(&self.object, flags)?;
        let attr = opened.attr;
        Ok(Done::of(self, opened).knowing(self.object, attr))
    }

    fn is_slow(&self) -> bool {
        true
    }
}

impl Perform for SetXattr {
    fn bounds(&self, payload: usize) -> Result<(), Refusal> {
        at_most(payload, MAX_XATTR_VALUE, E2BIG)?;
        xattr_name(&self.name)
    }

    fn judge(&self, order: &Order<'_>, of_opens: Targets) -> Result<Targets, Refusal> {
        let who = order.call.identity()?;
        let store = order.store();
        store.may_set_xattr(&who, &self.object, &self.name.0)?;
        Ok(of_opens)
    }

    fn intent(&self, order: &Order<'_>, _: &Targets) -> Result<Option<Intent>, Refusal> {
        let has = || order.store().has_xattr(&self.object, &self.name.0);
        let repeated = repeatable([self.object]);
        // Of ACLs Linux doesn't look at the flag.
        if self.flags & XATTR_CREATE == 0 || self.name.0.starts_with(ACL) {
            return Ok(Some(repeated));
        }
        Ok(match has() {
            Ok(false) => Some(Intent::AddXattr {
                object: self.object,
                name: self.name.clone(),
            }),
            Ok(true) => None,
            Err(_) => Some(repeated),
        })
    }

    fn run(&self, order: &Order<'_>, _: &Targets) -> Result<Done, Refusal> {
        let (who, name) = (order.call.identity()?, &self.name.0);
        let store = order.store();
        store.setxattr(&who, &self.object, name, order.payload, self.flags)?;
        Ok(Done::of(self, ()))
    }
}

impl Perform for RemoveXattr {
    fn bounds(&self, _: usize) -> Result<(), Refusal> {
        xattr_name(&self.name)
    }

    fn judge(&self, order: &Order<'_>, of_opens: Targets) -> Result<Targets, Refusal> {
        let who = order.call.identity()?;
        let store = order.store();
        store.may_remove_xattr(&who, &self.object, &self.name.0)?;
        Ok(of_opens)
    }

    fn intent(&self, order: &Order<'_>, _: &Targets) -> Result<Option<Intent>, Refusal> {
        let has = order.store().has_xattr(&self.object, &self.name.0);
        Ok(match has {
            Ok(true) => Some(Intent::RemoveXattr {
                object: self.object,
                name: self.name.clone(),
            }),
            Ok(false) => None,
            Err(_) => Some(repeatable([self.object])),
        })
    }

    fn run(&self, order: &Order<'_>, _: &Targets) -> Result<Done, Refusal> {
        let (who, name) = (order.call.identity()?, &self.name.0);
        order.store().removexattr(&who, &self.object, name)?;
        Ok(Done::of(self, ()))
    }
}
