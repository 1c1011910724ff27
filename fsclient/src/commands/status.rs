//! `fsclient status`.

use super::{StateArg, say, show, show_json};
use crate::daemon::control::{self, AskError};
use crate::daemon::{
    Dirty, Kept, Lock, MemoryStatus, MountStatus, StateDir, StatusDocument, Survey, Unanswered,
    mounts, survey,
};
use crate::recovery::{RecoveryError, path_for_people};
use crate::session::Waiting;
use clap::Args;
use leasefs_protocol::escaped;
use std::path::{Path, PathBuf};

/// People get so many items named of each recovery folder.
const NAMED_ITEMS: usize = 16;
/// And so many locks of each mount.
const NAMED_LOCKS: usize = 64;

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// One mount point; all mounts of this user without it
    dir: Option<PathBuf>,
    /// In JSON: `{"mounts": [..], "unanswered": [..], "kept": [..]}`
    #[arg(long)]
    json: bool,
    /// Only mounts with this state directory, and those whose daemon doesn't answer
    #[command(flatten)]
    state: StateArg,
}

pub(super) fn run(args: &StatusArgs) -> Result<(), String> {
    let Survey {
        mut mounts,
        unanswered,
        troubles,
    } = match &args.dir {
        Some(dir) => Survey {
            mounts: vec![one(&mounts::locate(dir)?)?],
            ..Survey::default()
        },
        None => survey(control::STATUS_TIMEOUT)?,
    };
    if let Some(state) = &args.state.state {
        let state = std::path::absolute(state).map_err(|e| e.to_string())?;
        mounts.retain(|mount| mount.state_dir == state || args.dir.is_some());
    }
    troubles.iter().for_each(|trouble| say(trouble));
    let kept = kept(args, &mounts);
    let document = StatusDocument {
        mounts,
        unanswered,
        kept,
    };
    if args.json {
        return show_json(&document);
    }
    show(&for_people(&document))
}

fn one(dir: &Path) -> Result<MountStatus, String> {
    let asked = control::ask(dir, &control::Request::Status).and_then(|mut asked| asked.status());
    let user = mounts::mounted_by(dir)?.unwrap_or(rustix::process::geteuid().as_raw());
    let known = |told: MountStatus| MountStatus {
        user,
        dir: dir.to_owned(),
        ..told
    };
    asked
        .map(known)
        .map_err(|error| match (error, mounts::is_leasefs(dir)) {
            (AskError::Refused(reason), _) => reason,
            (AskError::Silent(_), Ok(false)) => format!("{} is not a leasefs mount", dir.display()),
            (AskError::Silent(_), Ok(true)) if mounts::is_dead(dir) => died(dir),
            (error, _) => format!("{}: {error}", dir.display()),
        })
}

/// What to tell of a mount whose daemon is gone.
pub(super) fn died(dir: &Path) -> String {
    let (shown, advice) = (path_for_people(dir), what_to_do(dir));
    format!("the daemon of {shown} has died: {advice}")
}

fn what_to_do(dir: &Path) -> String {
    let dir = path_for_people(dir);
    format!("`fsclient umount {dir}` removes what it left")
}

fn unanswered_for_people(mount: &Unanswered) -> String {
    let dir = path_for_people(&mount.dir);
    let why = match mount.state.as_str() {
        "dead" => format!("has died: {}", what_to_do(&mount.dir)),
        "stopped" => "is stopped: SIGCONT lets it go on".to_owned(),
        "hangs" => format!("does not answer: `fsclient umount --force {dir}` unmounts without it"),
        "hidden" => {
            "is not found: was it started with another XDG_RUNTIME_DIR or LEASEFS_RUNTIME_DIR?"
                .to_owned()
        }
        _ => "is of another version than this command".to_owned(),
    };
    let source = escaped(&mount.source);
    format!("{dir}  from {source}\n  daemon    {why}\n")
}

/// What is kept outlives the mounts: the state directory asked for, or the user's, is looked into
/// even if no mount has it.
fn kept(args: &StatusArgs, mounts: &[MountStatus]) -> Vec<Kept> {
    // What another user's daemon calls its state directory may be anything.
    let own = rustix::process::geteuid().as_raw();
    let own = mounts.iter().filter(|mount| mount.user == own);
    let mut states: Vec<PathBuf> = own.map(|mount| mount.state_dir.clone()).collect();
    if args.dir.is_none() {
        // Without a state directory there is nothing in it.
        states.extend(StateDir::find(args.state.state.as_deref()).map(|own| own.path().to_owned()));
    }
    states.sort();
    states.dedup();
    states.into_iter().flat_map(kept_in).collect()
}

fn kept_in(state_dir: PathBuf) -> Vec<Kept> {
    let items = StateDir::find(Some(&state_dir)).map(|state| state.recovery().items());
    let items = items.unwrap_or_default().into_iter();
    let kept = |item| Kept {
        state_dir: state_dir.clone(),
        item,
    };
    let say = |error: &RecoveryError| say(&error.to_string());
    items
        .filter_map(|item| item.inspect_err(say).ok())
        .map(kept)
        .collect()
}

fn for_people(document: &StatusDocument) -> String {
    let answering = document.mounts.iter().map(mount_for_people);
    let unanswered = document.unanswered.iter().map(unanswered_for_people);
    let mut mounts: String = answering.chain(unanswered).collect();
    if mounts.is_empty() {
        mounts.push_str("no mounts\n");
    }
    let same_folder = |a: &Kept, b: &Kept| a.state_dir == b.state_dir;
    mounts
        + &document
            .kept
            .chunk_by(same_folder)
            .map(kept_for_people)
            .collect::<String>()
}

fn kept_for_people(kept: &[Kept]) -> String {
    let Some(first) = kept.first() else {
        return String::new();
    };
    let mut lines = vec![format!(
        "could not be brought in and is kept: {} (`fsclient recover --state {} list`)",
        kept.len(),
        path_for_people(&first.state_dir)
    )];
    lines.extend(kept.iter().take(NAMED_ITEMS).map(|Kept { item, .. }| {
        let (file, source) = (item.file(), escaped(&item.source));
        format!(
            "  {}  {file} of {source}: {} bytes, {}",
            item.id, item.bytes, item.reason
        )
    }));
    if let Some(more) = kept.len().checked_sub(NAMED_ITEMS).filter(|more| *more > 0) {
        lines.push(format!("  and {more} more"));
    }
    lines.join("\n") + "\n"
}

fn counts(counts: &std::collections::BTreeMap<String, u64>) -> String {
    let all: Vec<String> = counts
        .iter()
        .map(|(kind, count)| format!("{} {count}", escaped(kind)))
        .collect();
    match all.is_empty() {
        true => "none".into(),
        false => all.join(", "),
    }
}

fn memory(memory: &MemoryStatus) -> String {
    let kinds = [
        ("cached", memory.cached),
        ("clean", memory.clean),
        ("dirty", memory.dirty),
        ("unstable", memory.unstable),
    ];
    let used = kinds.iter().map(|(_, bytes)| bytes).sum();
    let each = kinds.map(|(kind, bytes)| format!("{kind} {}", mebibytes(bytes)));
    format!(
        "{} of {} MiB: {}",
        mebibytes(used),
        memory.limit >> 20,
        each.join(", ")
    )
}

fn mebibytes(bytes: u64) -> String {
    format!("{}.{}", bytes >> 20, ((bytes % (1 << 20)) * 10) >> 20)
}

pub(super) fn seconds(millis: u64) -> String {
    format!("{}.{} s", millis / 1000, millis % 1000 / 100)
}

/// What the server doesn't have yet.
pub(super) fn to_write(dirty: &Dirty) -> String {
    const KIB: u64 = 1024;
    if dirty.bytes == 0 {
        return "nothing".to_owned();
    }
    let speed = match dirty.bytes_per_second {
        Some(rate) => format!("{} KiB/s", rate / KIB),
        None => "nothing is known of the speed".into(),
    };
    let still = match dirty.still_ms {
        0..3_000 => String::new(),
        still => format!(", nothing for {}", seconds(still)),
    };
    let (kib, files) = (dirty.bytes.div_ceil(KIB), dirty.files);
    format!("{kib} KiB of {files} file(s), {speed}{still}")
}

/// What the server has, and its disk perhaps not.
fn not_durable(mount: &MountStatus) -> String {
    match mount.memory.unstable.div_ceil(1024) {
        0 => String::new(),
        kib => format!("; {kib} KiB may not be on the server's disk yet"),
    }
}

fn manner(mount: &MountStatus) -> String {
    let read_only = mount.read_only.then_some(", read-only");
    let through = (mount.write_through && !mount.read_only).then_some(", written through");
    [read_only, through].into_iter().flatten().collect()
}

/// Whose rights requests have, by the server's policy.
fn identity(policy: Option<&str>) -> &'static str {
    match policy {
        Some("squash") => "squash: everybody acts as one user of the server's host",
        Some("root_squash") => "root_squash: each acts as himself, root as nobody",
        Some("trust") => "trust: each acts as himself, root too",
        _ => "not known yet",
    }
}

fn mount_for_people(mount: &MountStatus) -> String {
    let mut lines = summary(mount);
    if mount.unmounting {
        lines.push("  unmounts  as soon as all of that is on the server's disk".to_owned());
    }
    lines.extend(mount.session.waiting.iter().map(waiting_for_people));
    lines.extend(mount.locks.iter().take(NAMED_LOCKS).map(lock_for_people));
    let more = mount.locks.len().saturating_sub(NAMED_LOCKS);
    if more > 0 {
        lines.push(format!("  and {more} more locks: see --json"));
    }
    lines.join("\n") + "\n"
}

fn summary(mount: &MountStatus) -> Vec<String> {
    let rpc = &mount.session;
    let trouble = rpc
        .trouble
        .as_ref()
        .map_or(String::new(), |trouble| format!(" ({})", escaped(trouble)));
    vec![
        format!(
            "{}  from {}{}",
            path_for_people(&mount.dir),
            escaped(&mount.source),
            manner(mount)
        ),
        format!("  session   {}", escaped(&rpc.session)),
        format!(
            "  server    {}, {}{trouble}, {} reconnects",
            escaped(&rpc.server),
            escaped(&rpc.state),
            rpc.reconnects
        ),
        format!("  identity  {}", identity(rpc.identity.as_deref())),
        format!(
            "  lease     {} left of {}",
            seconds(mount.lease_ms_left),
            seconds(rpc.term_ms)
        ),
        format!(
            "  leases    {}; recalls open: {}",
            counts(&mount.leases),
            mount.recalls_open
        ),
        format!("  memory    {}", memory(&mount.memory)),
        format!(
            "  requests  {} in all: {}; renewals: {}",
            rpc.requests_total,
            counts(&rpc.requests),
            rpc.renewals
        ),
        format!(
            "  answered from the daemon's cache: {}",
            counts(&mount.cache_answers)
        ),
        format!(
            "  to write  {}{}",
            to_write(&mount.dirty),
            not_durable(mount)
        ),
    ]
}

pub(super) fn lock_for_people(lock: &Lock) -> String {
    let mode = if lock.shared { "shared" } else { "exclusive" };
    let range = match (lock.first, lock.last) {
        (0, None) => String::new(),
        (first, None) => format!(" from byte {first} on"),
        (first, Some(last)) => format!(" of bytes {first} to {last}"),
    };
    let file = escaped(&lock.file);
    let of = format!(
        "{} {mode}{range} of {file}, process {}",
        escaped(&lock.kind),
        lock.pid
    );
    match (lock.token, &lock.holder) {
        (Some(token), _) => format!("  lock      {of}: held, number {token}"),
        (None, None) => format!("  lock      {of}: waits"),
        (None, Some(holder)) => format!(
            "  lock      {of}: waits for process {} of {}, {} at most should that be cut off",
            holder.pid,
            escaped(&holder.mount),
            seconds(holder.ends_in_ms)
        ),
    }
}

pub(super) fn waiting_for_people(waiting: &Waiting) -> String {
    let process = waiting
        .pid
        .map_or(String::new(), |pid| format!("process {pid}, "));
    let object = match (&waiting.path, &waiting.object) {
        (Some(path), _) if path.is_empty() => " on the root".to_owned(),
        (Some(path), _) => format!(" on {}", escaped(path)),
        (None, Some(object)) => {
            format!(" on a file of unknown name (handle {})", escaped(object))
        }
        (None, None) => String::new(),
    };
    let end = waiting
        .ends_in_ms
        .map_or("as long as it takes".into(), |end| {
            format!("{} more at most", seconds(end))
        });
    format!(
        "  waiting   {process}user {}: {}{object} for {}, {end}",
        waiting.uid,
        escaped(&waiting.kind),
        seconds(waiting.waited_ms)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_are_told_how_much_memory_is_used_and_for_what() {
        let used = MemoryStatus {
            limit: 512 << 20,
            cached: 1 << 20,
            clean: 0,
            dirty: 3 << 19,
            unstable: 8 << 20,
        };
        let said = "10.5 of 512 MiB: cached 1.0, clean 0.0, dirty 1.5, unstable 8.0";
        assert_eq!(memory(&used), said);
    }

    #[test]
    fn what_a_server_or_a_file_is_called_forges_no_line() {
        let hostile = "x\u{1b}[2J\nno mounts\r\u{202e}y";
        let item = serde_json::json!({
            "state_dir": "/s", "id": "01234567", "source": hostile, "path": hostile,
            "object": "00", "why": "changed_elsewhere", "time_ms": 0, "size": 1, "bytes": 1, "ranges": [],
        });
        let kept: Kept = serde_json::from_value(item).expect("an item");
        let text = kept_for_people(&[kept]);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(!text.contains(['\u{1b}', '\r', '\u{202e}']), "{text:?}");
    }
}
