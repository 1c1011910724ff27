//! `fsclient recover`, and what `fsclient status` says of it, against a plain directory in the
//! place of a mount.

use bytes::Bytes;
use fsclient::recovery::{Folder, Lost, Reason, RecoveryId};
use leasefs_protocol::Handle;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, UNIX_EPOCH};

/// A state directory and the directory that stands for a mount, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("leasefs-recover-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(path.join("mnt/docs")).expect("scratch folder");
        Self(path)
    }

    fn mnt(&self, below: &str) -> PathBuf {
        self.0.join("mnt").join(below)
    }

    fn folder(&self) -> Folder {
        Folder::at(self.0.join("state/client/recovery"))
    }

    /// Keeps bytes of `path`, of which the writer saw `size` bytes in all.
    fn keep(&self, path: impl AsRef<OsStr>, size: u64, extents: &[(u64, &str)]) -> RecoveryId {
        let extent =
            |(offset, text): &(u64, &str)| (*offset, Bytes::from(text.as_bytes().to_vec()));
        let lost = Lost {
            writer: None,
            source: "nas:4430:/".into(),
            path: Some(PathBuf::from(path.as_ref())),
            object: Handle::new(&[0xab; 3]).expect("fits"),
            reason: Reason::ChangedElsewhere,
            time: UNIX_EPOCH + Duration::from_secs(1_795_280_914),
            size,
            extents: extents.iter().map(extent).collect(),
        };
        self.folder().keep(&lost).expect("kept")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_fsclient"))
            .args(arguments)
            .arg("--state")
            .arg(self.0.join("state"))
            .env("LEASEFS_RUNTIME_DIR", self.0.join("run"))
            .current_dir(&self.0)
            .output()
            .expect("fsclient runs")
    }

    /// Standard output of a command that succeeds.
    fn output(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// What a command that fails says.
    fn refusal(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).expect("text")
    }

    /// `recover WHAT ID --mount mnt ..`
    fn recover<'a>(&'a self, what: &'a str, id: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let mut arguments = vec!["recover", what, id, "--mount", "mnt"];
        arguments.extend(more);
        arguments
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.as_ref().display()))
}

#[test]
fn list_tells_file_time_reason_and_ranges() {
    let scratch = Scratch::new();
    assert!(
        scratch
            .output(&["recover", "list"])
            .starts_with("nothing is kept")
    );
    let id = scratch.keep("docs/a", 20, &[(0, "four"), (10, "six by")]);
    let text = scratch.output(&["recover", "list"]);
    assert!(text.starts_with(&format!("{id}  docs/a\n")), "{text}");
    for part in [
        "nas:4430:/",
        "2026-11-21 17:08:34 UTC",
        "changed elsewhere",
        "10 bytes: 0-3, 10-15; the file had 20",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let json: Value =
        serde_json::from_str(&scratch.output(&["recover", "list", "--json"])).expect("JSON");
    let expected = serde_json::json!({"items": [{
        "id": id.to_string(), "source": "nas:4430:/", "path": "docs/a", "object": "ababab",
        "why": "changed_elsewhere", "time_ms": 1_795_280_914_000_u64, "size": 20, "bytes": 10,
        "ranges": [{"offset": 0, "length": 4}, {"offset": 10, "length": 6}],
    }]});
    assert_eq!(json, expected);
}

#[test]
fn restore_lays_what_is_kept_over_the_file_in_the_size_its_writer_saw() {
    let scratch = Scratch::new();
    fs::write(scratch.mnt("docs/a"), "0123456789 theirs").expect("written");
    fs::set_permissions(scratch.mnt("docs/a"), fs::Permissions::from_mode(0o640)).expect("mode");
    let id = scratch
        .keep("docs/a", 12, &[(2, "AB"), (6, "CD")])
        .to_string();
    let text = scratch.output(&scratch.recover("restore", &id, &[]));
    let restored = scratch.mnt(&format!("docs/a.recovered-{id}"));
    assert!(text.contains(&format!("docs/a.recovered-{id}")), "{text}");
    assert_eq!(read(&restored), "01AB45CD89 t");
    assert_eq!(read(scratch.mnt("docs/a")), "0123456789 theirs");
    let mode = fs::metadata(&restored).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert!(
        scratch.output(&["recover", "list"]).contains(&id),
        "kept until it is discarded"
    );
}

#[test]
fn restore_makes_a_file_longer_that_its_writer_had_longer() {
    let scratch = Scratch::new();
    fs::write(scratch.mnt("log"), "short").expect("written");
    let id = scratch.keep("log", 12, &[(8, "more")]).to_string();
    scratch.output(&scratch.recover("restore", &id, &["--as", "new"]));
    assert_eq!(read(scratch.mnt("new")), "short\0\0\0more");
}

#[test]
fn restore_never_overwrites() {
    let scratch = Scratch::new();
    fs::write(scratch.mnt("a"), "old").expect("written");
    fs::write(scratch.mnt("taken"), "mine").expect("written");
    symlink("nowhere", scratch.mnt("link")).expect("link");
    let id = scratch.keep("a", 3, &[(0, "new")]).to_string();
    for taken in ["a", "taken", "link", "./mnt/taken"] {
        let text = scratch.refusal(&scratch.recover("restore", &id, &["--as", taken]));
        assert!(text.contains("exists") && text.contains("--as"), "{text}");
    }
    assert_eq!(read(scratch.mnt("a")), "old");
    assert_eq!(read(scratch.mnt("taken")), "mine");
    assert!(!scratch.mnt("nowhere").exists());
}

#[test]
fn a_restore_that_fails_leaves_no_file() {
    let scratch = Scratch::new();
    fs::write(scratch.mnt("a"), "old").expect("written");
    let id = scratch.keep("a", 3, &[(0, "new")]).to_string();
    fs::write(scratch.folder().path().join(&id).join("data"), "n").expect("damaged");
    let text = scratch.refusal(&scratch.recover("restore", &id, &[]));
    assert!(text.contains("damaged"), "{text}");
    assert!(!scratch.mnt(&format!("a.recovered-{id}")).exists());
}

#[test]
fn a_file_or_directory_that_has_gone_is_no_obstacle() {
    let scratch = Scratch::new();
    let id = scratch.keep("docs/a", 6, &[(2, "kept")]).to_string();
    let output = scratch.run(&scratch.recover("restore", &id, &["--as", "b"]));
    assert!(output.status.success(), "{output:?}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("zeros"), "{errors}");
    assert_eq!(read(scratch.mnt("docs/b")), "\0\0kept");

    fs::remove_dir_all(scratch.mnt("docs")).expect("removed");
    let text = scratch.refusal(&scratch.recover("restore", &id, &[]));
    assert!(text.contains("--as ./NAME"), "{text}");
    scratch.output(&scratch.recover("restore", &id, &["--as", "./elsewhere"]));
    assert_eq!(read(scratch.0.join("elsewhere")), "\0\0kept");
}

#[test]
fn links_on_the_way_to_the_file_are_not_followed() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.0.join("private")).expect("made");
    fs::write(scratch.0.join("private/a"), "private").expect("written");
    symlink("../private", scratch.mnt("way")).expect("link");
    symlink("../private/a", scratch.mnt("file")).expect("link");
    for path in ["way/a", "../private/a", "file"] {
        let id = scratch.keep(path, 1, &[(0, "x")]).to_string();
        for what in ["diff", "restore"] {
            scratch.refusal(&scratch.recover(what, &id, &[]));
        }
    }
    assert_eq!(
        fs::read_dir(scratch.0.join("private"))
            .expect("there")
            .count(),
        1
    );
}

#[test]
fn without_a_mount_of_the_source_the_message_says_what_to_do() {
    let scratch = Scratch::new();
    let id = scratch.keep("a", 6, &[(2, "kept")]).to_string();
    for what in ["diff", "restore"] {
        let text = scratch.refusal(&["recover", what, &id]);
        assert!(text.contains("nas:4430:/ is not mounted"), "{text}");
        assert!(text.contains("--mount"), "{text}");
    }
    scratch.output(&["recover", "restore", &id, "--as", "./here"]);
    assert_eq!(read(scratch.0.join("here")), "\0\0kept");
}

#[test]
fn diff_of_text_shows_ranges_and_lines() {
    let scratch = Scratch::new();
    fs::write(scratch.mnt("a"), "one\ntwo\nthree\n").expect("written");
    let id = scratch.keep("a", 14, &[(0, "one"), (4, "TWO")]).to_string();
    let text = scratch.output(&scratch.recover("diff", &id, &[]));
    for part in [
        "  0-2: the same now\n",
        "  4-6: 3 of 3 bytes differ, between 4 and 6\n",
        "--- mnt/a\n",
        &format!("+++ mnt/a as kept in {id}\n"),
        "-two\n+TWO\n",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

#[test]
fn diff_of_other_bytes_shows_ranges_only_and_counts_what_is_not_there_as_different() {
    let scratch = Scratch::new();
    fs::write(scratch.mnt("a"), b"\0\x01\x02\x03").expect("written");
    let id = scratch.keep("a", 8, &[(2, "\x02\x04\x05")]).to_string();
    let text = scratch.output(&scratch.recover("diff", &id, &[]));
    assert!(
        text.contains("2-4: 2 of 3 bytes differ, between 3 and 4"),
        "{text}"
    );
    assert!(!text.contains("---"), "{text}");
    fs::remove_file(scratch.mnt("a")).expect("removed");
    let text = scratch.output(&scratch.recover("diff", &id, &[]));
    assert!(text.contains("there is no mnt/a"), "{text}");
    assert!(text.contains("3 of 3 bytes differ"), "{text}");
}

#[test]
fn diff_compares_ranges_of_several_pieces() {
    let scratch = Scratch::new();
    let long = "x".repeat(3 << 20);
    fs::write(scratch.mnt("a"), long.replacen('x', "y", 1)).expect("written");
    let id = scratch
        .keep("a", 4 << 20, &[(0, &long), (7 << 19, "z")])
        .to_string();
    let text = scratch.output(&scratch.recover("diff", &id, &[]));
    assert!(
        text.contains("0-3145727: 1 of 3145728 bytes differ, between 0 and 0"),
        "{text}"
    );
    assert!(
        text.contains("3670016-3670016: 1 of 1 bytes differ"),
        "{text}"
    );
}

#[test]
fn discard_removes_and_an_unknown_item_is_an_error() {
    let scratch = Scratch::new();
    let ids = [0, 1].map(|_| scratch.keep("a", 1, &[(0, "x")]).to_string());
    scratch.output(&["recover", "discard", &ids[0], &ids[1]]);
    assert_eq!(scratch.folder().ids().expect("read"), []);
    for what in ["discard", "diff", "restore"] {
        let text = scratch.refusal(&["recover", what, &ids[0]]);
        assert!(text.contains("recover list"), "{text}");
    }
    assert_eq!(
        scratch.run(&["recover", "discard", "../x"]).status.code(),
        Some(2)
    );
}

#[test]
fn a_damaged_item_fails_the_list_and_hides_no_other() {
    let scratch = Scratch::new();
    let bad = scratch.keep("bad", 1, &[(0, "x")]).to_string();
    let good = scratch.keep("good", 1, &[(0, "x")]).to_string();
    fs::write(scratch.folder().path().join(&bad).join("item.json"), "{").expect("damaged");
    let output = scratch.run(&["recover", "list"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stdout).contains(&good),
        "{output:?}"
    );
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("damaged") && errors.contains(&bad),
        "{errors}"
    );
    scratch.output(&["recover", "discard", &bad]);
}

#[test]
fn names_of_any_bytes_are_shown_in_one_line_and_restored() {
    let scratch = Scratch::new();
    let name = OsStr::from_bytes(b"odd\n\x1b\xff");
    fs::write(scratch.0.join("mnt").join(name), "old").expect("written");
    let id = scratch.keep(name, 3, &[(0, "N")]).to_string();
    let text = scratch.output(&["recover", "list"]);
    assert!(
        text.starts_with(&format!("{id}  odd\\n\\u{{1b}}\\xff\n")),
        "{text}"
    );
    scratch.output(&scratch.recover("diff", &id, &[]));
    scratch.output(&scratch.recover("restore", &id, &[]));
    let mut restored = name.to_owned();
    restored.push(format!(".recovered-{id}"));
    assert_eq!(read(scratch.0.join("mnt").join(restored)), "Nld");
}

#[test]
fn a_name_that_grows_too_long_can_be_chosen() {
    let scratch = Scratch::new();
    let name = "n".repeat(250);
    fs::write(scratch.mnt(&name), "old").expect("written");
    let id = scratch.keep(&name, 3, &[(0, "new")]).to_string();
    let text = scratch.refusal(&scratch.recover("restore", &id, &[]));
    assert!(text.contains("--as"), "{text}");
    scratch.output(&scratch.recover("restore", &id, &["--as", "short"]));
    assert_eq!(read(scratch.mnt("short")), "new");
}

#[test]
fn status_names_what_is_kept_even_if_nothing_is_mounted() {
    let scratch = Scratch::new();
    assert_eq!(scratch.output(&["status"]), "no mounts\n");
    let id = scratch.keep("docs/a", 20, &[(0, "four")]).to_string();
    let text = scratch.output(&["status"]);
    assert!(
        text.contains("kept: 1 (`fsclient recover --state"),
        "{text}"
    );
    assert!(
        text.contains(&format!("  {id}  docs/a of nas:4430:/: 4 bytes, changed")),
        "{text}"
    );
    let json: Value = serde_json::from_str(&scratch.output(&["status", "--json"])).expect("JSON");
    let kept = json.get("kept").and_then(Value::as_array).expect("kept");
    let [kept] = kept.as_slice() else {
        panic!("{json}");
    };
    let state = scratch.0.join("state").display().to_string();
    for (field, value) in [("id", id), ("path", "docs/a".into()), ("state_dir", state)] {
        assert_eq!(kept.get(field), Some(&Value::from(value)), "{field}");
    }
}
