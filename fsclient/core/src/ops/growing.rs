//! Sizes that the kernel is made to believe before it is told them.

use super::Ops;
use crate::api::{Notice, Noticed};
use crate::call::NodeId;
use crate::inode::Heard;
use crate::run::{Bell, Part, Set};
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::{Attr, FileKind, Handle};
use std::time::Duration;

/// Which it is being made to believe: it may take the notice late.
#[derive(Debug, Default)]
pub(super) struct Growing {
    under_way: Part<Set<(NodeId, u64)>>,
    begun: Part<u64>,
    over: Bell,
}

struct UnderWay<'a>(&'a Growing, (NodeId, u64));

impl Growing {
    fn begins(&self, node: NodeId) -> UnderWay<'_> {
        *self.begun.borrow_mut() += 1;
        let this = (node, *self.begun.borrow());
        self.under_way.borrow_mut().insert(this);
        UnderWay(self, this)
    }

    /// Waits for those that have begun by now.
    async fn are_over(&self, node: NodeId) {
        let last = *self.begun.borrow();
        let earlier = |(of, begun): &(NodeId, u64)| *of == node && *begun <= last;
        while self.under_way.borrow().iter().any(earlier) {
            self.over.listen().await;
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.borrow_mut().remove(&self.1);
        self.0.over.ring_all();
    }
}

impl Ops {
    /// Whether the kernel must be made to believe the size before it is told.
    ///
    /// It ignores a reply to GETATTR if, since the request was made, its attributes were invalidated
    /// (a recall) or a local write was answered. Whoever asked because of a read goes on
    /// with the size known before, and would miss what another mount had appended by then.
    pub(super) fn must_grow(&self, node: NodeId, object: &Handle, attr: &Attr) -> bool {
        let inodes = self.inodes();
        attr.kind == FileKind::File
            && inodes.may_be_short(node, attr.size)
            && inodes.is_open(object)
            && !planted::is(Bug::GrownUntold)
    }

    /// Whether the kernel, which may believe in more, takes this size when it is answered: if it is made to grow before, it
    /// ignores the answer, and goes on with more.
    pub(super) fn will_be_cut(&self, at: (NodeId, &Handle), attr: &Attr, heard: Heard) -> bool {
        let inodes = self.inodes();
        inodes.may_be_long(at.0, attr.size) && inodes.takes_answer(at, heard)
    }

    /// Before the kernel is told the size: what was `heard` when the attributes were asked for, and when the kernel had asked. Returns for how
    /// long it may believe them then.
    pub(super) async fn grow_first(
        &self,
        (node, object): (NodeId, &Handle),
        (attr, valid): (&Attr, Duration),
        (known, heard): (Heard, Heard),
    ) -> Duration {
        let cut = self.will_be_cut((node, object), attr, heard);
        if cut || !self.must_grow(node, object, attr) {
            return valid;
        }
        self.grow((node, object), attr, known).await;
        // That may have taken long.
        let cached = self.cache().live();
        let told = cached.and_then(|mut tier| tier.attr_for_kernel(object));
        let still = told.filter(|(now, _)| now == attr);
        still.map_or(Duration::ZERO, |(_, left)| left.min(valid))
    }

    /// Makes the kernel believe a size at least; `known`: what it had heard when that was asked for. A size from before it was set here is
    /// never told: nothing would take it back.
    pub(super) async fn grow(&self, (node, object): (NodeId, &Handle), attr: &Attr, known: Heard) {
        if self.inodes().was_cut(node, known) || !self.must_grow(node, object, attr) {
            return;
        }
        let _under_way = self.growing.begins(node);
        let size = attr.size;
        // Whoever is answered from here on may be ignored.
        self.inodes().reaches(node, size);
        // While the kernel believes in more than that it wouldn't notice, and would then read the answer that
        // tells less. It ignores those to what it has asked before its attributes are dropped.
        if self.inodes().take_shrinks(node) {
            self.outside.tell(Notice::DropAttrs(node)).await;
        }
        if self.outside.tell(Notice::Grow { node, size }).await == Noticed::Done {
            self.inodes().grown(node, size, self.cx.monotonic());
        }
    }

    /// The kernel is about to be told that a file's size was set: what it is being made to believe it believes before.
    pub(super) async fn is_cut(&self, node: NodeId) {
        self.inodes().is_cut(node);
        self.growing.are_over(node).await;
    }
}
