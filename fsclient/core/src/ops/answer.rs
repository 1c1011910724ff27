//! Every request, and what answers it.

use super::stale::About;
use super::{Ask, Ops};
use crate::call::{Answer, Asker, Call, Fh, NodeId};
use crate::inode::Place;
use leasefs_protocol::Refusal;
use std::sync::Arc;

impl Ops {
    /// What a request is answered if nothing has to be waited for.
    pub fn at_once(self: &Arc<Self>, asker: Asker, call: &Call) -> Option<Result<Answer, Refusal>> {
        let answer = self.answered_here(asker, call)?;
        self.reached(call.reaches());
        if answer.is_ok() && !call.walks() {
            self.stale.done(asker);
        }
        Some(answer)
    }

    fn answered_here(
        self: &Arc<Self>,
        asker: Asker,
        call: &Call,
    ) -> Option<Result<Answer, Refusal>> {
        let answer = match call {
            Call::Lookup { parent, name } => {
                let found = self.lookup_cached(*parent, name)?;
                self.walk_here(asker, *parent, name);
                self.looks(asker, *parent, found.as_ref());
                Answer::Found(found)
            }
            Call::GetAttr { node } => Answer::Attr(self.getattr_cached(*node)?),
            Call::SetAttr { node, set, .. } => {
                Answer::Attr(self.setattr_at_once(asker, *node, set)?)
            }
            Call::ReadLink { node } => Answer::Bytes(self.readlink_cached(*node)?),
            Call::Open { node, flags } => Answer::Opened(self.open_cached(asker, *node, *flags)?),
            Call::OpenDir { node } => Answer::OpenedDir(self.opendir_cached(asker, *node)?),
            Call::ReadDir { fh, offset, plus } => {
                self.readdir_cached(asker, *fh, *offset, *plus)?
            }
            Call::GetXattr { node, name, room } => {
                return Some(self.getxattr_cached(*node, name, *room)?.map(Answer::Xattr));
            }
            Call::ListXattr { node, room } => {
                return Some(
                    self.listxattr_cached(asker, *node, *room)?
                        .map(Answer::Xattr),
                );
            }
            Call::Write { fh, writing } => {
                return Some(self.write_at_once(*fh, writing)?.map(Answer::Written));
            }
            Call::Flush { fh, owner } => {
                let done = self.close_locks_at_once(*fh, *owner);
                return done.then(|| self.flush(*fh).map(|()| Answer::Done));
            }
            Call::Lock { fh, lock } => {
                return Some(self.lock_at_once(*fh, lock)?.map(|()| Answer::Done));
            }
            Call::Release { fh } => {
                self.release(*fh);
                Answer::Done
            }
            Call::ReleaseDir { fh } => {
                self.releasedir(*fh);
                Answer::Done
            }
            _ => return None,
        };
        Some(Ok(answer))
    }

    /// What a request is answered.
    ///
    /// # Errors
    /// What the application is told instead.
    pub async fn answer(self: &Arc<Self>, ask: &Ask, call: Call) -> Result<Answer, Refusal> {
        let (node, walks, reaches) = (call.node(), call.walks(), call.reaches());
        let now = self.cx.monotonic();
        let about = About {
            root: node == Some(NodeId::ROOT),
            in_directory: call.is_in_directory(),
        };
        let answer = self.answer_to(ask, call).await;
        self.reached(reaches);
        match answer {
            Ok(answer) => {
                if !walks {
                    self.stale.done(ask.asker);
                }
                Ok(answer)
            }
            Err(refusal) if node.is_none() => Err(refusal),
            Err(refusal) => Err(self.stale.told(ask.asker, now, about, refusal)),
        }
    }

    /// The kernel is answered something by which it takes a file for as long as this at least.
    fn reached(&self, reaches: Option<(Fh, u64)>) {
        if let Some((fh, end)) = reaches
            && let Some(open) = self.opens.file(fh)
        {
            self.inodes().reaches(open.node, end);
        }
    }

    async fn answer_to(self: &Arc<Self>, ask: &Ask, call: Call) -> Result<Answer, Refusal> {
        Ok(match call {
            Call::Lookup { parent, name } => {
                let found = self.lookup(ask, parent, &name).await?;
                self.looks(ask.asker, parent, found.as_ref());
                Answer::Found(found)
            }
            Call::GetAttr { node } => Answer::Attr(self.getattr(ask, node).await?),
            Call::SetAttr {
                node,
                fh,
                set,
                owner,
            } => Answer::Attr(self.setattr(ask, node, (fh, owner), set).await?),
            Call::ReadLink { node } => Answer::Bytes(self.readlink(ask, node).await?),
            Call::MakeNode { .. }
            | Call::MakeDir { .. }
            | Call::Symlink { .. }
            | Call::Unlink { .. }
            | Call::RemoveDir { .. }
            | Call::Rename { .. }
            | Call::Link { .. }
            | Call::Create { .. } => self.answer_of_names(ask, call).await?,
            Call::Open { node, flags } => Answer::Opened(self.open(ask, node, flags).await?),
            Call::OpenDir { node } => Answer::OpenedDir(self.opendir(ask, node).await?),
            Call::ReadDir { fh, offset, plus } => self.readdir(ask, fh, offset, plus).await?,
            Call::StatFs { node } => Answer::FsStat(self.statfs(ask, node).await?),
            Call::Access { node, mask } => done(self.access(ask, node, mask).await)?,
            Call::GetXattr { .. }
            | Call::ListXattr { .. }
            | Call::SetXattr { .. }
            | Call::RemoveXattr { .. } => self.answer_of_xattrs(ask, call).await?,
            Call::Explain { path } => Answer::Explained(Box::new(self.explain(ask, path).await?)),
            Call::FlushAll => {
                self.flush_all().await;
                Answer::Done
            }
            Call::SyncAll => done(self.sync_all().await)?,
            Call::Sleep => {
                self.engine.sleep().await;
                Answer::Done
            }
            Call::Wake => {
                self.engine.wake();
                Answer::Done
            }
            call => self.answer_of_files(ask, call).await?,
        })
    }

    async fn answer_of_names(&self, ask: &Ask, call: Call) -> Result<Answer, Refusal> {
        Ok(match call {
            Call::MakeNode {
                parent,
                name,
                mode,
                rdev,
            } => Answer::Made(self.mknod(ask, parent, &name, mode, rdev).await?),
            Call::MakeDir { parent, name, mode } => {
                Answer::Made(self.mkdir(ask, parent, &name, mode).await?)
            }
            Call::Symlink {
                parent,
                name,
                target,
            } => Answer::Made(self.symlink(ask, parent, &name, &target).await?),
            Call::Unlink { parent, name } => done(self.unlink(ask, parent, &name).await)?,
            Call::RemoveDir { parent, name } => done(self.rmdir(ask, parent, &name).await)?,
            Call::Rename {
                parent,
                name,
                new_parent,
                new_name,
                flags,
            } => {
                let from = Place {
                    parent,
                    name: &name,
                };
                let to = Place {
                    parent: new_parent,
                    name: &new_name,
                };
                done(self.rename(ask, from, to, flags).await)?
            }
            Call::Link { node, parent, name } => {
                Answer::Made(self.link(ask, node, parent, &name).await?)
            }
            Call::Create {
                parent,
                name,
                mode,
                flags,
            } => {
                let (entry, opened) = self.create(ask, parent, &name, mode, flags).await?;
                Answer::Created(entry, opened)
            }
            _ => return Err(Refusal::Internal),
        })
    }

    async fn answer_of_xattrs(&self, ask: &Ask, call: Call) -> Result<Answer, Refusal> {
        Ok(match call {
            Call::GetXattr { node, name, room } => {
                Answer::Xattr(self.getxattr(ask, node, &name, room).await?)
            }
            Call::ListXattr { node, room } => Answer::Xattr(self.listxattr(ask, node, room).await?),
            Call::SetXattr {
                node,
                name,
                value,
                flags,
            } => done(self.setxattr(ask, node, &name, value, flags).await)?,
            Call::RemoveXattr { node, name } => done(self.removexattr(ask, node, &name).await)?,
            _ => return Err(Refusal::Internal),
        })
    }

    async fn answer_of_files(self: &Arc<Self>, ask: &Ask, call: Call) -> Result<Answer, Refusal> {
        Ok(match call {
            Call::Read { at, len, owner } => {
                self.keeps_locks(&self.file(at.fh)?.object, Some(at.fh), Some(owner))?;
                Answer::Bytes(self.read(ask, at, len).await?)
            }
            Call::ReadPages { at, len } => {
                self.keeps_locks(&self.file(at.fh)?.object, Some(at.fh), None)?;
                Answer::Bytes(self.read_pages(ask, at, len).await?)
            }
            Call::Flush { fh, owner } => {
                self.close_locks(fh, owner).await;
                done(self.flush(fh))?
            }
            Call::Lock { fh, lock } => done(self.lock(ask, fh, lock).await)?,
            Call::TestLock { fh, lock } => Answer::Lock(self.test_lock(ask, fh, lock).await?),
            Call::Write { fh, writing } => Answer::Written(self.write(ask, fh, writing).await?),
            Call::Sync { fh, data_only } => done(self.fsync(ask, fh, data_only).await)?,
            Call::Allocate { at, len, mode } => done(self.fallocate(ask, at, len, mode).await)?,
            Call::Seek { at, whence } => Answer::Offset(self.seek(ask, at, whence).await?),
            Call::CopyRange { from, to, len } => {
                Answer::Written(self.copy_range(ask, from, to, len).await?)
            }
            _ => return Err(Refusal::Internal),
        })
    }
}

impl Call {
    /// How far a file reaches at least, to the kernel, once this is answered (`fuse_write_update_attr`).
    fn reaches(&self) -> Option<(Fh, u64)> {
        let (fh, offset, len) = match self {
            Self::Write { fh, writing } => (*fh, writing.offset, writing.data.len() as u64),
            Self::Allocate { at, len, .. } => (at.fh, at.offset, *len),
            Self::CopyRange { to, len, .. } => (to.fh, to.offset, *len),
            _ => return None,
        };
        Some((fh, offset.saturating_add(len)))
    }
}

fn done(done: Result<(), Refusal>) -> Result<Answer, Refusal> {
    done.map(|()| Answer::Done)
}
