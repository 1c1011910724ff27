//! `fsclient why`.

use super::status::{lock_for_people, seconds, waiting_for_people};
use super::{StateArg, show, show_json};
use crate::daemon::control::{self, AskError};
use crate::daemon::{Cost, Here, Other, There, Why};
use crate::recovery::{path_as_text, path_for_people};
use crate::session::Waiting;
use clap::Args;
use leasefs_host::mounts::{self, Mount};
use leasefs_host::output::span;
use leasefs_protocol::escaped;
use serde::Serialize;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Most symbolic links on the way to a mount, as the kernel has it.
const MOST_LINKS: usize = 40;
/// People get so many other mounts shown.
const NAMED: usize = 16;

#[derive(Debug, Args)]
pub(super) struct WhyArgs {
    /// A file or directory on a mount
    path: PathBuf,
    /// In JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    _state: StateArg,
}

/// The answer, and of what.
#[derive(Serialize)]
struct Document {
    #[serde(serialize_with = "path_as_text")]
    path: PathBuf,
    #[serde(serialize_with = "path_as_text")]
    mount: PathBuf,
    #[serde(flatten)]
    why: Why,
}

pub(super) fn run(args: &WhyArgs) -> Result<(), String> {
    let shown = path_for_people(&args.path);
    let failed = |e: std::io::Error| format!("{shown}: {e}");
    let absolute = std::path::absolute(&args.path).map_err(failed)?;
    let table = mounts::table().map_err(|e| format!("the mount table: {e}"))?;
    let place = find(&table, &absolute, |path| fs::read_link(path).ok());
    let (mount, below) = place.ok_or_else(|| format!("{shown} is not on a leasefs mount"))?;
    let request = control::Request::Why {
        path: below.as_os_str().as_bytes().to_vec(),
    };
    let asked = control::ask(&mount, &request).and_then(|mut asked| asked.why());
    let why = asked.map_err(|error| match error {
        AskError::Refused(reason) => format!("{shown}: {reason}"),
        AskError::Silent(_) if crate::daemon::mounts::is_dead(&mount) => {
            super::status::died(&mount)
        }
        error => format!("{}: {error}", path_for_people(&mount)),
    })?;
    let path = mount.join(below);
    let document = Document { path, mount, why };
    if args.json {
        return show_json(&document);
    }
    show(&for_people(&document.path, &document.why))
}

/// The mount point of the daemon that a path leads to, and the path below what it mounts. Links are followed up to the mount:
/// to look at anything on it would take leases.
fn find(
    table: &[Mount],
    path: &Path,
    read_link: impl Fn(&Path) -> Option<PathBuf>,
) -> Option<(PathBuf, PathBuf)> {
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    let mut todo: VecDeque<OsString> = parts(path).collect();
    while let Some(part) = todo.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let is_ours = mounts::of(table, &next).is_some_and(|mount| mount.is_leasefs);
        let Some(link) = (!is_ours).then(|| read_link(&next)).flatten() else {
            at = next;
            continue;
        };
        links += 1;
        if links > MOST_LINKS {
            return None;
        }
        if link.is_absolute() {
            at = PathBuf::from("/");
        }
        todo = parts(&link).chain(todo).collect();
    }
    let found = mounts::of(table, &at).filter(|mount| mount.is_leasefs)?;
    let below = found.root.join(at.strip_prefix(&found.point).ok()?);
    // A part of it may be mounted elsewhere, too (mount --bind).
    let whole = |mount: &&Mount| mount.device == found.device && mount.root == Path::new("/");
    let whole = table.iter().find(whole)?;
    Some((
        whole.point.clone(),
        below.strip_prefix("/").ok()?.to_owned(),
    ))
}

/// The components of a path, but for the root and `.`.
fn parts(path: &Path) -> impl Iterator<Item = OsString> + use<> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    parts.map(OsStr::to_owned).collect::<Vec<_>>().into_iter()
}

fn for_people(path: &Path, why: &Why) -> String {
    let what = why.server.as_ref().map_or(String::new(), |there| {
        format!("{}, inode {}, ", there.kind, there.inode)
    });
    let mut lines = vec![
        format!(
            "{}  {what}from {}",
            path_for_people(path),
            escaped(&why.source)
        ),
        format!("  here      {}", here(&why.here)),
    ];
    if let Some(trouble) = &why.trouble {
        lines.push(format!("  server    {}", escaped(trouble)));
    }
    // On what is told already.
    let waiting = why.waiting.iter().map(|waiting| Waiting {
        object: None,
        ..waiting.clone()
    });
    lines.extend(waiting.map(|waiting| waiting_for_people(&waiting)));
    lines.extend(why.locks.iter().map(lock_for_people));
    if let Some(there) = &why.server {
        lines.extend(elsewhere(there));
        lines.push(format!("  read      {}", read(&why.here, there)));
        lines.push(format!("  write     {}", write(&why.here, there)));
    }
    lines.join("\n") + "\n"
}

/// Which leases, as both sides say it.
fn leases(leased: &[String], exclusive: &[String]) -> Option<String> {
    let read: Vec<&str> = leased
        .iter()
        .filter(|part| !exclusive.contains(part))
        .map(String::as_str)
        .collect();
    let kinds = [("write", exclusive.join(", ")), ("read", read.join(", "))];
    let some = kinds.into_iter().filter(|(_, parts)| !parts.is_empty());
    let some: Vec<String> = some
        .map(|(mode, parts)| format!("{mode} lease on {parts}"))
        .collect();
    (!some.is_empty()).then(|| some.join(", "))
}

/// Since when, as its server knows it.
fn granted(ago: Option<u64>) -> String {
    ago.map_or(String::new(), |ms| {
        format!(", granted {} ago", span(ms / 1000))
    })
}

fn here(here: &Here) -> String {
    let since = granted(here.granted_ms);
    let mut said = match leases(&here.leased, &here.exclusive) {
        Some(leases) => vec![format!(
            "{leases}{since}: {} left",
            seconds(here.lease_ms_left)
        )],
        None => vec!["no lease".to_owned()],
    };
    if here.recalled {
        said.push("asked to give it back".to_owned());
    }
    let kib = |bytes: u64| bytes.div_ceil(1024);
    if here.clean_bytes > 0 {
        said.push(format!("{} KiB cached", kib(here.clean_bytes)));
    }
    if here.dirty_bytes > 0 {
        said.push(format!("{} KiB to be written", kib(here.dirty_bytes)));
    }
    if here.kernel_pages {
        said.push("pages in the kernel".to_owned());
    }
    said.join("; ")
}

fn elsewhere(there: &There) -> Vec<String> {
    let mut lines: Vec<String> = there.others.iter().take(NAMED).map(other).collect();
    let more = there.others.len().saturating_sub(NAMED) + there.more as usize;
    if more > 0 {
        lines.push(format!("  and {more} more mounts"));
    }
    if there.others.is_empty() {
        lines.push("  others    no other mount has a lease or a lock of it".to_owned());
    }
    if there.waiting > 0 {
        lines.push(format!(
            "  queue     {} operation(s) wait for it at the server",
            there.waiting
        ));
    }
    if let Some(grace) = there.grace_ms {
        let left = seconds(grace);
        lines.push(format!(
            "  grace     the server waits for its clients' return, {left} more"
        ));
    }
    lines
}

fn other(other: &Other) -> String {
    let mount = other.mount.as_ref();
    let mount = mount.map_or("a mount of another machine".into(), |mount| {
        escaped(mount).to_string()
    });
    let leases = leases(&other.leased, &other.exclusive);
    let since = granted(other.granted_ms);
    let mut said: Vec<String> = leases.map(|leases| leases + &since).into_iter().collect();
    for (locks, what) in [(other.locks, "held"), (other.lock_waits, "waited for")] {
        if locks > 0 {
            said.push(format!("{locks} lock(s) {what}"));
        }
    }
    if let Some(since) = other.recalled_since_ms {
        let until = seconds(other.recalled_until_ms.unwrap_or_default());
        said.push(format!(
            "asked to give it back {} ago, {until} more at most",
            seconds(since)
        ));
    }
    if other.silent {
        said.push(format!(
            "does not answer: its leases end in {}",
            seconds(other.ends_ms)
        ));
    }
    format!("  other     {mount}: {}", said.join("; "))
}

/// Whether leases cover what a read shows.
fn covers(parts: &[String], kind: &str) -> bool {
    let needs: &[&str] = match kind {
        "file" => &["attrs", "data"],
        "directory" => &["listing"],
        _ => &["attrs"],
    };
    needs
        .iter()
        .all(|need| parts.iter().any(|part| part == need))
}

fn read(here: &Here, there: &There) -> String {
    match covers(&here.leased, &there.kind) {
        true => {
            "is covered by the lease here: what is cached is read without asking anybody".into()
        }
        false => format!("from here would {}", cost(there.read, there)),
    }
}

fn write(here: &Here, there: &There) -> String {
    if there.kind == "file" && covers(&here.exclusive, "file") {
        return "is buffered under the lease here: nobody is asked".into();
    }
    let bounces = there.bounces_ms.map_or(String::new(), |ends| {
        let ends = seconds(ends);
        let why = match there.kind.as_str() {
            "directory" => "what is new isn't buffered, since others look here",
            _ => "writes aren't buffered, since the file bounces between mounts",
        };
        format!("; {why} (looked at again in {ends})")
    });
    format!("from here would {}{bounces}", cost(there.write, there))
}

fn cost(cost: Cost, there: &There) -> String {
    let Cost {
        recalls,
        silent,
        at_most_ms,
    } = cost;
    let mounts = match recalls {
        0 => {
            return match at_most_ms {
                0 => "recall nobody: it takes a round trip to the server".into(),
                grace => format!(
                    "wait for the server's grace to end: at most {}",
                    seconds(grace)
                ),
            };
        }
        1 => "1 mount".to_owned(),
        n => format!("{n} mounts"),
    };
    let more = if there.more > 0 { ", or more," } else { "" };
    let at_most = match (silent, at_most_ms) {
        (0, 0) => String::new(),
        (0, grace) => format!(
            "; the server's grace ends first: at most {}",
            seconds(grace)
        ),
        (silent, end) => {
            let named = there.others.iter().filter(|other| other.silent);
            let named: Vec<String> = named
                .filter_map(|other| other.mount.as_ref())
                .take(NAMED)
                .map(|mount| escaped(mount).to_string())
                .collect();
            let who = match (silent, named.is_empty()) {
                (1, true) if recalls == 1 => "it".to_owned(),
                (1, false) if recalls == 1 => named.join(", "),
                (1, true) => "one of them".to_owned(),
                (1, false) => format!("one of them, {},", named.join(", ")),
                (n, true) => format!("{n} of them"),
                (n, false) => format!("{n} of them ({})", named.join(", ")),
            };
            let verb = if silent == 1 { "does" } else { "do" };
            format!("; {who} {verb} not answer: at most {}", seconds(end))
        }
    };
    format!("recall {mounts}{more}{at_most}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
        1 0 8:1 / / rw - ext4 /dev/sda rw\n\
        2 1 0:50 / /mnt/data rw - fuse.leasefs nas:/ rw\n\
        3 1 0:50 /sub /srv/bound rw - fuse.leasefs nas:/ rw\n\
        4 2 8:2 / /mnt/data/disk rw - ext4 /dev/sdb rw\n";

    fn found(path: &str) -> Option<(PathBuf, PathBuf)> {
        let link = |path: &Path| match path.to_str()? {
            "/home/link" => Some("/mnt/data/dir".into()),
            "/home/near" => Some("../mnt".into()),
            "/home/round" => Some("round".into()),
            _ => {
                let on_mount = path.starts_with("/mnt/data") && !path.starts_with("/mnt/data/disk");
                assert!(!on_mount, "{path:?} is looked at, which takes leases");
                None
            }
        };
        find(&mounts::parse(TABLE), Path::new(path), link)
    }

    #[test]
    fn the_mount_of_a_path_is_found_without_looking_at_anything_on_it() {
        let below = |below: &str| Some((PathBuf::from("/mnt/data"), PathBuf::from(below)));
        assert_eq!(found("/mnt/data/dir/f"), below("dir/f"));
        assert_eq!(found("/mnt/data"), below(""));
        assert_eq!(found("/home/link/f"), below("dir/f"));
        assert_eq!(found("/home/near/data/f"), below("f"));
        assert_eq!(found("/mnt/data/a/../b"), below("b"));
        assert_eq!(found("/srv/bound/f"), below("sub/f"));
    }

    #[test]
    fn what_is_mounted_elsewhere_is_none_of_ours() {
        for path in [
            "/etc/passwd",
            "/mnt/data/disk/f",
            "/home/round/f",
            "/mnt/data/../x",
        ] {
            assert_eq!(found(path), None, "{path}");
        }
    }

    fn silent(mount: Option<&str>) -> There {
        There {
            kind: "file".into(),
            others: vec![
                Other {
                    mount: mount.map(str::to_owned),
                    leased: vec!["attrs".into(), "data".into()],
                    silent: true,
                    ends_ms: 8_000,
                    ..Other::default()
                },
                Other::default(),
            ],
            write: Cost {
                recalls: 2,
                silent: 1,
                at_most_ms: 8_000,
            },
            ..There::default()
        }
    }

    #[test]
    fn who_does_not_answer_is_named_with_how_long_that_takes_at_most() {
        let here = Here::default();
        let said =
            "from here would recall 2 mounts; one of them, b:/m, does not answer: at most 8.0 s";
        assert_eq!(write(&here, &silent(Some("b:/m"))), said);
        let said = "from here would recall 2 mounts; one of them does not answer: at most 8.0 s";
        assert_eq!(write(&here, &silent(None)), said);
        let mut alone = silent(Some("b:/m"));
        alone.write.recalls = 1;
        let said = "from here would recall 1 mount; b:/m does not answer: at most 8.0 s";
        assert_eq!(write(&here, &alone), said);
    }

    #[test]
    fn what_is_leased_here_costs_nothing() {
        let parts = || vec!["attrs".to_owned(), "data".to_owned()];
        let here = Here {
            leased: parts(),
            exclusive: parts(),
            ..Here::default()
        };
        let there = silent(None);
        assert!(read(&here, &there).contains("without asking anybody"));
        assert!(write(&here, &there).contains("nobody is asked"));
    }

    #[test]
    fn a_mounts_name_forges_no_line() {
        let hostile = "x\u{1b}[2J\n  write     nothing";
        let why = Why {
            server: Some(silent(Some(hostile))),
            ..Why::default()
        };
        let text = for_people(Path::new("/m/f\n"), &why);
        assert_eq!(text.lines().count(), 6, "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
