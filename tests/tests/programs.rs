//! Programs people use, on a mount, with another mount watching.

use leasefs_tests::mounted::{World, WorldOptions, within};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);

/// Runs a shell script in `dir` and returns what it prints.
fn shell(dir: &Path, script: &str) -> String {
    let output = Command::new("sh")
        .args(["-e", "-c", script])
        .current_dir(dir)
        .env("HOME", dir)
        .env("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z")
        .env("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z")
        .output()
        .expect("sh runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}\n{text}\n{complaint}");
    text
}

fn on_two_mounts(name: &str, work: impl FnOnce(&Path, &Path) + Send + 'static) {
    let world = World::start(name, &WorldOptions::mounts(2));
    let (here, there) = (world.mount(0).path(""), world.mount(1).path(""));
    within(name, LIMIT, move || work(&here, &there));
}

#[test]
fn git_commits_clones_and_finds_nothing_wrong() {
    on_two_mounts("git", |here, there| {
        shell(
            here,
            "git config --global user.name t; git config --global user.email t@t.invalid
             git init -q repo; cd repo
             for i in $(seq 300); do mkdir -p d$((i % 10)); echo line $i > d$((i % 10))/f$i; done
             git add .; git commit -qm one; git gc -q",
        );
        assert_eq!(shell(there, "cd repo; git status --porcelain"), "");
        shell(there, "cd repo; echo more >> d1/f1; git commit -qam two");
        assert_eq!(shell(here, "cd repo; git log --format=%s"), "two\none\n");
        shell(
            here,
            "git clone -q repo copy; cd copy; git fsck --strict 2>&1",
        );
        assert_eq!(shell(there, "diff -r repo/d1 copy/d1"), "");
    });
}

#[test]
fn sqlite_keeps_its_database_whole() {
    on_two_mounts("sqlite", |here, there| {
        for mode in ["delete", "truncate", "wal"] {
            let make = format!(
                "sqlite3 {mode}.db 'pragma journal_mode={mode}; create table t(n integer primary key, x text);
                 with recursive c(n) as (select 1 union all select n+1 from c where n<2000)
                 insert into t select n, hex(randomblob(50)) from c;'"
            );
            shell(here, &make);
            let check =
                format!("sqlite3 {mode}.db 'pragma integrity_check; select count(*) from t;'");
            assert_eq!(shell(there, &check), "ok\n2000\n", "{mode}");
            shell(
                there,
                &format!("sqlite3 {mode}.db 'delete from t where n > 1000; vacuum;'"),
            );
            assert_eq!(shell(here, &check), "ok\n1000\n", "{mode}");
        }
    });
}

#[test]
fn tar_brings_a_tree_in_and_out_unchanged() {
    on_two_mounts("tar", |here, there| {
        shell(
            here,
            "mkdir -p tree/deep/er; cd tree; umask 022
             for i in $(seq 500); do echo $i > deep/f$i; done
             ln deep/f1 deep/er/hard; ln -s ../f2 deep/er/soft; mkfifo fifo; chmod 4711 deep/f3
             truncate -s 1M deep/sparse; touch -d '2001-02-03 04:05:06.789' deep/f4",
        );
        shell(
            there,
            "tar --format=posix -cf tree.tar tree; mkdir out; tar xpf tree.tar -C out",
        );
        assert_eq!(
            shell(here, "diff -r --no-dereference tree/deep out/tree/deep"),
            ""
        );
        let listing = "cd $D; find . -printf '%P %y %m %n %s %T@ %l\n' | grep -v '^ ' | sort";
        let list = |dir: &str| shell(here, &listing.replace("$D", dir));
        assert_eq!(list("tree/deep"), list("out/tree/deep"));
        let inodes = shell(
            there,
            "stat -c %i out/tree/deep/f1 out/tree/deep/er/hard | uniq | wc -l",
        );
        assert_eq!(inodes.trim(), "1");
    });
}

#[test]
fn a_compiler_builds_and_the_other_mount_runs_the_program() {
    on_two_mounts("compiler", |here, there| {
        fs::write(
            here.join("hello.c"),
            "#include <stdio.h>\nint main(void) { puts(TEXT); return 0; }\n",
        )
        .expect("a source");
        for text in ["one", "two", "three"] {
            shell(here, &format!("cc -DTEXT='\"{text}\"' -o hello hello.c"));
            assert_eq!(shell(there, "./hello"), format!("{text}\n"));
        }
    });
}

#[test]
fn an_editors_save_replaces_the_file_for_every_mount() {
    on_two_mounts("editor", |here, there| {
        fs::write(here.join("doc"), "version 0").expect("a file");
        for version in 1..=100 {
            // As editors do: write beside, fsync, keep a backup, rename over.
            let text = format!("version {version}");
            let temporary = here.join(".doc.swp");
            fs::write(&temporary, &text).expect("a write");
            fs::File::open(&temporary)
                .and_then(|f| f.sync_all())
                .expect("fsync");
            fs::rename(&temporary, here.join("doc")).expect("a rename");
            assert_eq!(fs::read_to_string(there.join("doc")).expect("a read"), text);
        }
    });
}
