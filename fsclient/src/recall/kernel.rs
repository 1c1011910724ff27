//! What the engine needs of the kernel, and what the server must be told.

use leasefs_protocol::{Approval, BootId, Handle, OpenId, Release};
use std::io;

/// The kernel's caches of this mount.
///
/// Each method returns when nothing of what it names is left in the kernel. An object the kernel
/// doesn't know, and a connection that has ended, hold nothing: that is `Ok`. After an error the
/// kernel may still hold it: the recall is not approved, and costs the other side a term.
pub trait KernelCache: Send + Sync + 'static {
    /// Drops attributes (and ACLs), also those of replies under way. Never blocks.
    ///
    /// # Errors
    /// The kernel's.
    fn drop_attrs(&self, object: &Handle) -> io::Result<()>;

    /// Drops attributes and the pages of a range; `len` 0 means to the end of the file. Blocks
    /// while the range holds a page of an unanswered READ, or one that is being written back.
    ///
    /// # Errors
    /// The kernel's.
    fn drop_pages(&self, object: &Handle, offset: u64, len: u64) -> io::Result<()>;

    /// Whether [`KernelCache::forget_names`] works just now: the kernel knows it, and nothing is
    /// mounted inside our mount, which it would take away. Must be true to the moment; cheap.
    fn can_forget_names(&self) -> bool;

    /// Makes the kernel look all names up again, also those of replies under way. Never blocks.
    ///
    /// # Errors
    /// The kernel's.
    fn forget_names(&self) -> io::Result<()>;

    /// Drops one name. Blocks while a request of its directory is unanswered.
    ///
    /// # Errors
    /// The kernel's.
    fn drop_name(&self, dir: &Handle, name: &[u8]) -> io::Result<()>;

    /// Ends the connection: whatever waits in the kernel fails. The last resort.
    ///
    /// # Errors
    /// If that isn't possible from within.
    fn end(&self) -> io::Result<()>;
}

/// What the server is told by the engine. Nothing here waits.
pub trait Server: Send + Sync + 'static {
    /// Approves recalls.
    fn approve(&self, approvals: Vec<Approval>);
    /// Gives leases back.
    fn release(&self, releases: Vec<Release>);
    /// Closes an open.
    fn close(&self, open: OpenId);
    /// The server's host is in this life: what another has lost is to be written again.
    fn host_is(&self, host: BootId);
    /// Brings the buffered bytes of these files to the server, then calls back.
    fn flush(&self, files: Vec<Handle>, then: Box<dyn FnOnce() + Send>);
}
