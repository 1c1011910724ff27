//! Changes of our own: what they cover leaves the caches, then they are sent.

use super::{Ask, Changes, Ops, Told};
use crate::inode::Place;
use crate::recall::ChangeScope;
use crate::session::CallOptions;
use bytes::Bytes;
use leasefs_protocol::{BootId, Caller, Change, Handle, Name, Parts, Refusal, Touched};
use std::time::Duration;

/// Until the new life of the server's host is known here, in which a change is asked for anew.
const PAUSE: Duration = Duration::from_millis(5);

impl Ops {
    /// Makes a change under the caller's own identity.
    pub(super) async fn change<C: Changes>(
        &self,
        ask: &Ask,
        scope: ChangeScope,
        change: C,
        payload: Bytes,
    ) -> Result<Told<C::Answer>, Refusal> {
        let caller = self.caller(ask);
        self.change_as(ask, caller, scope, change, payload).await
    }

    pub(super) async fn change_as<C: Changes>(
        &self,
        ask: &Ask,
        caller: Caller,
        scope: ChangeScope,
        change: C,
        payload: Bytes,
    ) -> Result<Told<C::Answer>, Refusal> {
        self.change_behind(ask, caller, scope, &[], change, payload)
            .await
    }

    /// A change that also takes effect behind unanswered changes of the objects `behind`.
    pub(super) async fn change_behind<C: Changes>(
        &self,
        ask: &Ask,
        caller: Caller,
        scope: ChangeScope,
        behind: &[Handle],
        change: C,
        payload: Bytes,
    ) -> Result<Told<C::Answer>, Refusal> {
        let (is_write, empties) = match change.clone().into() {
            Change::Write(_) => (true, false),
            Change::OpenTruncated(_) => (false, true),
            Change::SetAttr(asked) => (false, asked.set.size == Some(0)),
            _ => (false, false),
        };
        let content = scope.content();
        let mut settles = scope.settles();
        let (told, objects) = loop {
            let life = self.writeback.life();
            let own = self.engine.own_change(scope.clone());
            let own = ask.unless_left(own).await?;
            for file in settles.iter().chain(behind) {
                if let Err(refusal) = self.settle(ask, file).await {
                    own.never_sent();
                    return Err(refusal);
                }
            }
            if let Err(refusal) = self.are_whole(scope.all_moved()) {
                own.never_sent();
                return Err(refusal);
            }
            let (dropped, asked) = (own.dropped(), own.asked());
            let touches: Vec<Handle> = dropped.iter().chain(behind).copied().collect();
            let (caller, change, payload) = (caller.clone(), change.clone(), payload.clone());
            let options = CallOptions {
                life: life.host(),
                locked: scope.locked(),
                ..ask.options()
            };
            let objects = dropped.clone();
            let mut changed = self
                .rpc
                .change(caller, change, payload, &touches, dropped, options)
                .await;
            own.finish(&mut changed).await;
            if !changed.overtaken {
                break (Told::new(asked, changed.result?)?, objects);
            }
            // A mapped page too comes behind what is written again.
            settles.extend(content);
            self.cx.sleep(PAUSE).await;
        };
        if !is_write {
            self.changed(&objects, content, told.host);
        }
        if let Some(file) = content.filter(|_| empties) {
            // What is written from here on is whole without what was lost.
            self.inodes().tells_of_loss(&file);
        }
        self.unlinked(&told.touched);
        Ok(told)
    }

    /// Whether nothing was lost of these files, as far as nobody has been told: one that takes another's place must not do that
    /// without what was written to it.
    ///
    /// # Errors
    /// Why something was lost, once.
    fn are_whole(&self, files: &[Handle]) -> Result<(), Refusal> {
        let mut inodes = self.inodes();
        match files.iter().find(|file| inodes.tells_of_loss(file)) {
            Some(file) => Err(inodes.why_lost(file)),
            None => Ok(()),
        }
    }

    /// What a change has left without a name.
    fn unlinked(&self, touched: &[Touched]) {
        for unlinked in touched.iter().filter(|touched| touched.attr.nlink == 0) {
            let open = self.inodes().unlinked(&unlinked.object);
            if !open {
                self.writeback.out_of_reach(&unlinked.object);
            }
        }
    }

    /// A change of another session has left a file without a name: unless it is open here, what was written to it isn't kept,
    /// nor is the server's open of it. A crash of the server's host may give it its name back without its bytes, so they
    /// stay noted as not durable.
    pub fn unlinked_elsewhere(&self, object: &Handle) {
        let mut inodes = self.inodes();
        if let Some(host) = inodes.host_life().host()
            && inodes.is_kept_open(object)
        {
            inodes.unstable_change(*object, host, true);
        }
    }

    /// Objects were changed that the next commit of them must cover; of `content` the bytes.
    pub(super) fn changed(&self, objects: &[Handle], content: Option<Handle>, host: BootId) {
        self.inodes().unstable_changes(objects, content, host);
    }

    /// What a name that goes or moves denotes, as far as the cache knows: its attributes change
    /// along with the name. (What the cache doesn't know it doesn't hold either, or the server
    /// recalls it.)
    pub(super) fn with_victim(&self, scope: ChangeScope, dir: Handle, name: &Name) -> ChangeScope {
        match self.denoted(&dir, name) {
            Some(object) => scope.object(object, Parts::ATTRS),
            None => scope,
        }
    }

    /// As [`Ops::with_victim`], of what moves. What was written here is found without its name, too, where no lease covers that.
    pub(super) fn with_moved(
        &self,
        scope: ChangeScope,
        place: Place<'_>,
        (dir, name): (Handle, &Name),
    ) -> ChangeScope {
        let known = self.denoted(&dir, name);
        match known.or_else(|| self.inodes().written_at(place)) {
            Some(object) => scope.moved(object),
            None => scope,
        }
    }

    fn denoted(&self, dir: &Handle, name: &Name) -> Option<Handle> {
        let mut tier = self.cache().live()?;
        tier.denoted(dir, name.as_bytes())
    }
}
