//! Every bound of the system, in one place.
//!
//! A bound exists so that a hostile or broken peer can waste at most its own quota. Sizes
//! are bytes unless the name says otherwise.

use std::time::Duration;

/// Version of the protocol. A client speaks this one.
pub const PROTOCOL_VERSION: u32 = 8;
/// The oldest that a server serves: that of the release before. Servers are upgraded first.
pub const OLDEST_PROTOCOL_VERSION: u32 = 8;
/// The ALPN identifier, constant over all versions: versions are refused in `Hello`.
pub const ALPN: &[u8] = b"leasefs";
/// UDP port a server listens on unless told otherwise.
pub const DEFAULT_PORT: u16 = 4430;

/// Largest message header (the serialized part of a frame).
pub const MAX_HEADER: usize = 256 * 1024;
/// Largest payload (the raw file data of a frame).
pub const MAX_PAYLOAD: usize = 1024 * 1024;
/// Most places of one WRITE.
pub const MAX_PLACES: usize = 256;
/// So many bytes of a file that lie apart go in one WRITE: they are copied together for it.
pub const SCATTERED: usize = 256 * 1024;
/// Largest file whose bytes come along with its open.
pub const OPEN_DATA: usize = 16 * 1024;
/// Longest file name, as on every Linux file system (`NAME_MAX`).
pub const MAX_NAME: usize = 255;
/// Longest symlink target (`PATH_MAX` without its terminator).
pub const MAX_SYMLINK: usize = 4095;
/// Longest xattr name (`XATTR_NAME_MAX`).
pub const MAX_XATTR_NAME: usize = 255;
/// Largest xattr value and largest xattr list (`XATTR_SIZE_MAX`).
pub const MAX_XATTR_VALUE: usize = 64 * 1024;
/// Largest host file handle that fits into a [`crate::Handle`].
pub const MAX_HOST_HANDLE: usize = 39;
/// Bytes of a [`crate::Handle`] in all.
pub const MAX_HANDLE: usize = 64;
/// Largest open token.
pub const MAX_OPEN_TOKEN: usize = 8 * 1024;
/// Most supplementary groups of a caller; further ones are refused, never dropped silently.
pub const MAX_GROUPS: usize = 1024;
/// Most leases a reply grants besides those of a listing.
pub const MAX_GRANTS: usize = 2048;
/// Most objects a change may touch (rename with replacement: five).
pub const MAX_TOUCHED: usize = 8;
/// Most unanswered changes one change may have to follow.
pub const MAX_AFTER: usize = 64;
/// Serialized size a page of a listing aims at.
pub const LISTING_PAGE: usize = 64 * 1024;
/// Most entries in one page of a listing.
pub const MAX_LISTING_ENTRIES: usize = 1024;

/// Most sessions a server keeps.
pub const MAX_SESSIONS: usize = 10_000;
/// Most sessions of one client: mounts of one machine, and those of its last hour that ended badly.
pub const MAX_SESSIONS_PER_CLIENT: usize = 64;
/// Most connections whose TLS handshake is under way. Where there are more, one gives way to the
/// newest: the oldest of the network that most come from.
pub const MAX_HANDSHAKES: usize = 256;
/// With more handshakes under way than this, a client must show first that it receives at its
/// address.
pub const HANDSHAKES_UNVALIDATED: usize = 32;
/// Most connections of keys that aren't enrolled. Where there are more, one gives way as above.
pub const MAX_STRANGERS: usize = 256;
/// Most connections of enrolled clients that are being greeted. Where there are more, the oldest of
/// the client that has most gives way.
pub const MAX_GREETINGS: usize = 1024;
/// Bytes under way to the server on a connection that has not been let in.
pub const STRANGER_WINDOW: u32 = 64 * 1024;
/// Datagrams kept of a connection that the server has not looked at yet, in bytes.
pub const UNSEEN_BYTES: u64 = 128 * 1024;
/// Of all of those.
pub const UNSEEN_BYTES_IN_ALL: u64 = 8 * 1024 * 1024;
/// Most leases all sessions of one client may hold; over it the server recalls the oldest, and an eighth
/// above it grants no more.
pub const MAX_LEASES_PER_CLIENT: usize = 2_000_000;
/// Most opens of one client, where its share of the server's descriptors doesn't end before.
pub const MAX_OPENS_PER_CLIENT: usize = 65_536;
/// Objects that are gone, and whose leases the server still has to recall. The leases of further ones end as those of other
/// objects that nobody asks for any more.
pub const MAX_GONE: usize = 65_536;
/// Descriptors the server keeps for itself, out of what one process may have: its journal and sockets, and
/// those that requests need while they run.
pub const RESERVED_FILES: usize = 512;
/// Most requests of one session that the server has accepted and not answered.
pub const MAX_REQUESTS_IN_FLIGHT: usize = 1024;
/// Most bytes of one client's requests, what the server needs for them included, from when they come until they have been
/// answered.
pub const MAX_BYTES_ASKED: usize = 48 * 1024 * 1024;
/// Most bytes of its answers, from before they are read until they have been sent: of requests that wait for others none. Apart, so that what
/// others wait for comes in while it waits for answers.
pub const MAX_BYTES_ANSWERED: usize = 16 * 1024 * 1024;
/// What a request is counted for besides what it brings and asks for.
pub const REQUEST_COST: usize = 2048;
/// Most answers of changes kept for one session above its low-water mark.
pub const MAX_ANSWERS: usize = 4096;
/// Most bytes of them.
pub const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// How far a session's changes may be ahead of the first that is not answered to its client.
pub const MAX_CHANGES_AHEAD: u64 = 1 << 18;
/// Most recalls of one client that are unapproved at a time; with as many it is granted nothing, and each
/// of its sessions is asked at most for everything besides.
pub const MAX_RECALLS_OPEN: usize = 8192;
/// Most objects of which a server counts how often reads wait for their Write leases.
pub const MAX_BOUNCING: usize = 1024;
/// When so many reads of an object have waited for Write leases of other sessions within [`BOUNCE_WINDOW`], none is given of
/// it. What is written once and read elsewhere makes two of them: what is passed on less than twice a second
/// has little to gain.
pub const BOUNCE_WAITS: usize = 8;
/// See above.
pub const BOUNCE_WINDOW: Duration = Duration::from_secs(2);
/// How long that lasts before it is looked at whether the lease would pay.
pub const TERM_ZERO_PERIOD: Duration = Duration::from_secs(4);
/// When it would have saved so many writes more than reads would have waited, it is given at once.
pub const TERM_ZERO_TRIAL: u64 = 16;
/// So many more new files may be denied a Write lease, because others look into their directories, than these have found. Then none is
/// for [`EXCLUSIVE_AGAIN`].
pub const MAX_UNFOUND: u32 = 64;
/// For how long it is then given whatever happens, for the first time; twice as long each time.
pub const EXCLUSIVE_AGAIN: Duration = Duration::from_secs(16);
/// The longest such time.
pub const MAX_EXCLUSIVE_AGAIN: Duration = Duration::from_secs(300);
/// Most locks that one session holds of one file, and of which one message tells.
pub const MAX_LOCKS_OF_FILE: usize = 1024;
/// Most locks that one session holds.
pub const MAX_LOCKS: usize = 16_384;
/// Most locks that one session waits for.
pub const MAX_LOCK_WAITS: usize = 4096;
/// Numbers of locks that come with the right to decide a file's: the next lock after as many is asked for.
pub const FENCES_DELEGATED: u64 = 1 << 16;
/// Numbers of locks that a server has in one life.
pub const FENCES_OF_LIFE: u64 = 1 << 48;
/// Most calls that may take long which are made for one client at a time.
pub const MAX_SLOW_PER_CLIENT: usize = 16;
/// Most locks, held and waited for, that are looked at for one event: to find a deadlock, and who goes first.
pub const MAX_LOCK_STEPS: usize = 65_536;
/// Most files in which somebody who could have his lock lets others go first who have waited for longer.
pub const MAX_POLITE: usize = 256;
/// Most request streams of one connection.
pub const MAX_LANES: usize = 16;
/// Most items in one reclaim, release or approval message.
pub const MAX_BATCH: usize = 2048;
/// Most reclaim messages of a connection under way.
pub const MAX_RECLAIMS: usize = 64;
/// Bytes of control answers that may wait for a client that doesn't read them.
pub const MAX_UNREAD: usize = 1024 * 1024;
/// Bytes of recalls that may wait for a client that doesn't read them.
pub const MAX_RECALLS_UNREAD: usize = 4 * 1024 * 1024;
/// Bytes of answers that may wait in front of one stream.
pub const MAX_LANE_QUEUE: usize = 4 * 1024 * 1024;
/// Most names of a path that is looked up in one request.
pub const MAX_PATH: usize = 256;
/// Most sessions of which it is told what they hold of one object.
pub const MAX_HOLDERS_TOLD: usize = 64;
/// Files of which a server counts at a time how often they are asked for.
pub const MAX_BUSY_FILES: usize = 64;
/// Longest host name and mount point a client may tell; the rest is cut off.
pub const MAX_MOUNT: usize = 512;
/// Most addresses of a server in a ticket.
pub const MAX_ADDRESSES: usize = 8;
/// Most commands a server answers at a time.
pub const MAX_CALLERS: usize = 16;
/// Most turns a change takes before it is refused because its names are never at rest.
pub const MAX_TURNS: usize = 64;
/// Most clients a server enrols.
pub const MAX_CLIENTS: usize = 10_000;
/// Most unused tickets a server remembers.
pub const MAX_TICKETS: usize = 1_000;

/// Most memory of a client for the directories that are being listed, all together: some thirty million
/// entries.
pub const MAX_LISTED: usize = 1 << 30;

/// Most items in a client's recovery folder.
pub const MAX_RECOVERY_ITEMS: usize = 16_384;
/// Most byte ranges of one item of a recovery folder.
pub const MAX_RECOVERY_RANGES: usize = 262_144;
/// Longest path recorded with an item of a recovery folder; a longer one counts as unknown.
pub const MAX_RECOVERY_PATH: usize = 64 * 1024;
/// Largest description of an item of a recovery folder: what the two bounds above can need.
pub const MAX_RECOVERY_ITEM: u64 = 32 * 1024 * 1024;

/// Default lease term.
pub const DEFAULT_TERM: Duration = Duration::from_secs(10);
/// Shortest term a server accepts.
pub const MIN_TERM: Duration = Duration::from_secs(1);
/// Longest term a server accepts.
pub const MAX_TERM: Duration = Duration::from_secs(300);
/// Default bound of the difference of two clocks' rates, in parts per million.
pub const DEFAULT_DRIFT_PPM: u32 = 1_000;
/// Largest drift bound either side may set.
pub const MAX_DRIFT_PPM: u32 = 100_000;
/// A recall is overdue after the larger of this and four round trips.
pub const RECALL_OVERDUE: Duration = Duration::from_millis(200);
/// At most so long, whatever the round trip is said to be; who answers a recall by then is in time.
pub const RECALL_PATIENCE_MAX: Duration = Duration::from_secs(1);
/// Flushed bytes that are progress: they keep a recall alive.
pub const FLUSH_PROGRESS: u64 = 16 << 10;
/// A link is not taken for slower than this, in bytes a second: a client may always have as much unflushed as
/// goes over such a one in half a term, and a flush that gets on so fast is waited for.
pub const SLOWEST_LINK: u64 = 51_200;
/// At most so long, beyond a further term.
pub const MAX_FLUSH: Duration = Duration::from_secs(120);
/// Longest time for which a client that holds others up is denied leases, in terms. What its kernel has
/// to read in waits so long; who never answers costs others about one term out of so many and one.
pub const MAX_PROBATION_TERMS: u32 = 4;
/// And at most so long.
pub const MAX_PROBATION: Duration = Duration::from_secs(300);
/// How long a client may rely on what it was told of free space.
pub const ROOM_LASTS: Duration = Duration::from_secs(3);
/// How long an orderly shutdown waits for recalls.
pub const SHUTDOWN_RECALL: Duration = Duration::from_secs(2);
/// Time a greeting may take in all, from the connection's first packet until the client has its
/// answer.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// How long opens of an expired session are kept for its return.
pub const SESSION_COURTESY: Duration = Duration::from_secs(3600);
/// How long a revocation waits for what the host is doing for the client.
pub const REVOKE_PATIENCE: Duration = Duration::from_secs(5);
/// Life of an unused ticket.
pub const TICKET_LIFE: Duration = Duration::from_secs(24 * 3600);
