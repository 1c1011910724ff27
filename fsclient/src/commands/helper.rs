//! What `mount -t leasefs`, `/etc/fstab` and `umount` run: this program under the names `mount.leasefs` and
//! `umount.fuse.leasefs` (mount(8) and umount(8), "external helpers").
//!
//! `mount.leasefs` is `fsclient mount`: an option has the name that it has there, without the dashes.

use super::{Cli, Command, examples, failed};
use crate::daemon::mounts;
use clap::{Args, CommandFactory, Parser};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, ExitCode};

/// mount(8): the mount has failed.
const MOUNT_FAILED: u8 = 32;
/// mount(8): it was called wrongly.
const WRONG_CALL: u8 = 1;

/// Of `fsclient mount`, which take a value.
const VALUES: [&str; 6] = ["timeout", "memory", "state", "uid", "gid", "metrics"];
/// Of `fsclient mount`, which don't; and what mount(8) calls them.
const FLAGS: [(&str, &str); 8] = [
    ("ro", "--read-only"),
    ("read-only", "--read-only"),
    ("write-through", "--write-through"),
    ("suid", "--suid"),
    ("dev", "--dev"),
    // mount(8) keeps the others to itself where they are its defaults.
    ("allow-suid", "--suid"),
    ("allow-dev", "--dev"),
    ("noexec", "--noexec"),
];
/// What `mount` and others have read already, what is so anyway, and what is up to the server.
const NOT_OURS: [&str; 31] = [
    "rw",
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "silent",
    "loud",
    "nomand",
    "async",
    "exec",
    "nosuid",
    "nodev",
    "allow_other",
    "noatime",
    "nodiratime",
    "atime",
    "diratime",
    "relatime",
    "norelatime",
    "strictatime",
    "lazytime",
    "nolazytime",
];

#[derive(Debug, Parser)]
#[command(
    name = "mount.leasefs",
    version,
    about = "Mount a leasefs export, as `mount -t leasefs` and fstab do",
    after_long_help = examples::HELPER
)]
struct Mount {
    /// As `fsclient mount` takes it: a ticket, `@FILE`, or `HOST[:PORT]:/[SUBDIR]` once this client is enrolled
    source: OsString,
    /// Where to mount
    dir: OsString,
    /// Options of fsclient-mount(1) without the dashes (`timeout=30s`, `memory=1GiB`, `write-through`, `noexec`, `uid=`, `gid=`,
    /// `state=`, `metrics=`), `ro`, `hard` (for `timeout=hard`), `allow-suid` and `allow-dev` (for `--suid` and `--dev`: mount(8)
    /// keeps `suid` and `dev`, its defaults, to itself), and those of mount(8). One that isn't known is refused
    #[arg(short = 'o', value_delimiter = ',')]
    options: Vec<String>,
    /// Pass over options that aren't known
    #[arg(short)]
    sloppy: bool,
    /// Do everything but the mount
    #[arg(short)]
    fake: bool,
    #[command(flatten)]
    _common: Common,
}

#[derive(Debug, Parser)]
#[command(version, about = "Unmount a leasefs export, as `umount` does")]
struct Umount {
    /// Where it is mounted
    dir: PathBuf,
    /// Even if it is in use
    #[arg(short)]
    force: bool,
    /// Out of the file tree at once; what is open lives on
    #[arg(short)]
    lazy: bool,
    #[command(flatten)]
    _common: Common,
}

/// What both may be called with, and which means nothing here.
#[derive(Debug, Args)]
struct Common {
    #[arg(short, hide = true)]
    no_mtab: bool,
    #[arg(short, hide = true)]
    verbose: bool,
    #[arg(short, hide = true)]
    read_only_instead: bool,
    #[arg(short = 't', hide = true)]
    kind: Option<String>,
    #[arg(short = 'N', hide = true)]
    namespace: Option<OsString>,
}

/// What `mount.leasefs` takes, for its man page.
pub(super) fn description() -> clap::Command {
    Mount::command()
}

/// Does what the program's name says, if it says anything.
pub(super) fn by_name() -> Option<ExitCode> {
    let program = std::env::args_os().next()?;
    match Path::new(&program).file_name()?.as_bytes() {
        b"mount.leasefs" | b"mount.fuse.leasefs" => Some(called(mount)),
        b"umount.leasefs" | b"umount.fuse.leasefs" => Some(called(umount)),
        _ => None,
    }
}

/// With this process's arguments.
fn called<A: Parser>(run: fn(&A) -> ExitCode) -> ExitCode {
    match A::try_parse() {
        Ok(args) => run(&args),
        Err(error) => {
            let code = if error.use_stderr() { WRONG_CALL } else { 0 };
            // Nobody is left to be told if that fails.
            let _ = error.print();
            ExitCode::from(code)
        }
    }
}

fn mount(args: &Mount) -> ExitCode {
    if args.options.iter().any(|option| option == "remount") {
        return remount(args);
    }
    // One that has a terminal is somebody's, and outlives it in a session of its own.
    let arguments = match arguments(args, File::open("/dev/tty").is_ok()) {
        Ok(arguments) => arguments,
        Err(message) => return failed(&message, WRONG_CALL),
    };
    let mount = match Cli::try_parse_from(arguments).map(|cli| cli.command) {
        Ok(Command::Mount(mount)) => mount,
        Ok(_) => return failed("not a mount", WRONG_CALL),
        Err(error) => return failed(&wrong(&error.to_string()), WRONG_CALL),
    };
    if args.fake {
        return ExitCode::SUCCESS;
    }
    done(super::mount::run(mount).map_err(|failure| failure.to_string()))
}

/// Options that the kernel can change while it is mounted.
const CHANGEABLE: [&str; 20] = [
    "ro",
    "rw",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "atime",
    "noatime",
    "relatime",
    "norelatime",
    "strictatime",
    "diratime",
    "nodiratime",
    "sync",
    "async",
    "dirsync",
    "bind",
    "remount",
];

/// What a remount is asked for: what the mount has by now, which the kernel would forget, and what of the options isn't ours.
fn of_remount(has: &str, options: &[String]) -> String {
    let changes = options.iter().map(String::as_str);
    let changes = changes.filter(|option| CHANGEABLE.contains(option));
    let words = ["remount", has].into_iter().chain(changes);
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join(",")
}

/// Read-only, for one, is the kernel's: mount(8) asks it itself where there is no helper.
fn remount(args: &Mount) -> ExitCode {
    let has = match mounts::options_at(Path::new(&args.dir)) {
        Ok(has) => has,
        Err(message) => return failed(&message, MOUNT_FAILED),
    };
    let options = of_remount(&has, &args.options);
    let mount = Process::new("mount")
        .args(["-i", "-o", &options, "--"])
        .arg(&args.dir)
        .status();
    match mount {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        // It has said why.
        Ok(_) => ExitCode::from(MOUNT_FAILED),
        Err(error) => failed(&format!("mount: {error}"), MOUNT_FAILED),
    }
}

/// What is wrong with an option, as whoever has written it in fstab knows it.
fn wrong(error: &str) -> String {
    let line = error.lines().next().unwrap_or_default();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    line.replace(" for '--", " for option '")
}

fn umount(args: &Umount) -> ExitCode {
    if args.lazy {
        return done(mounts::locate(&args.dir).and_then(|dir| mounts::detach(&dir)));
    }
    done(super::umount::run(&args.dir, args.force))
}

fn done(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => failed(&message, MOUNT_FAILED),
    }
}

/// As `fsclient` takes them.
fn arguments(args: &Mount, has_terminal: bool) -> Result<Vec<OsString>, String> {
    let mut arguments: Vec<OsString> = vec!["fsclient".into(), "mount".into()];
    if !has_terminal {
        arguments.push("--by-system".into());
    }
    for option in &args.options {
        match translated(option) {
            Some(words) => arguments.extend(words),
            None if args.sloppy => {}
            None => return Err(unknown(option)),
        }
    }
    arguments.extend(["--".into(), args.source.clone(), args.dir.clone()]);
    Ok(arguments)
}

/// Nothing for what isn't ours; `None` if it isn't known.
fn translated(option: &str) -> Option<Vec<OsString>> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    let known = |flag: &&(&str, &str)| flag.0 == name;
    match value {
        _ if name.starts_with("x-") || name.starts_with("X-") || name == "comment" => Some(vec![]),
        None if name == "hard" => Some(vec!["--timeout=hard".into()]),
        None if NOT_OURS.contains(&name) || name.is_empty() => Some(vec![]),
        None => FLAGS.iter().find(known).map(|flag| vec![flag.1.into()]),
        // Who has mounted it, by fstab's leave.
        Some(_) if name == "user" => Some(vec![]),
        Some(value) if VALUES.contains(&name) => Some(vec![format!("--{name}={value}").into()]),
        Some(_) => None,
    }
}

fn unknown(option: &str) -> String {
    let flags = FLAGS.iter().map(|flag| flag.0.to_owned());
    let values = VALUES.iter().map(|name| format!("{name}=.."));
    let known: Vec<String> = flags.chain(["hard".to_owned()]).chain(values).collect();
    format!(
        "option {option:?} isn't known here; those of leasefs are {}, and see mount(8)",
        known.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(words: &[&str]) -> Result<Vec<String>, String> {
        let args = Mount::try_parse_from([&["mount.leasefs"], words].concat());
        let arguments = arguments(&args.map_err(|e| e.to_string())?, true)?;
        let text = |word: OsString| word.into_string().expect("text");
        Ok(arguments.into_iter().skip(2).map(text).collect())
    }

    #[test]
    fn what_mount_passes_on_becomes_options_of_the_mount() {
        let fstab =
            "rw,_netdev,nofail,x-systemd.automount,x-systemd.idle-timeout=1min,noatime,user=anna";
        let plain = ["--", "nas:/", "/mnt"].map(str::to_owned).to_vec();
        assert_eq!(told(&["nas:/", "/mnt", "-o", fstab]), Ok(plain.clone()));
        assert_eq!(
            told(&["nas:/", "/mnt", "-n", "-v", "-o", "rw"]),
            Ok(plain.clone())
        );
        let ours = "ro,suid,timeout=30s,memory=1GiB,write-through,noexec,state=/s";
        let mut expected: Vec<String> = [
            "--read-only",
            "--suid",
            "--timeout=30s",
            "--memory=1GiB",
            "--write-through",
            "--noexec",
            "--state=/s",
        ]
        .map(str::to_owned)
        .to_vec();
        expected.extend(plain);
        assert_eq!(told(&["nas:/", "/mnt", "-o", ours]), Ok(expected));
        let hard = told(&["nas:/", "/mnt", "-o", "hard"]).expect("known");
        assert_eq!(hard[0], "--timeout=hard");
    }

    /// mount(2) would take away what isn't named.
    #[test]
    fn a_remount_leaves_what_it_does_not_name_and_passes_on_nothing_of_ours() {
        let words = [
            "remount",
            "ro",
            "_netdev",
            "timeout=60s",
            "x-systemd.automount",
        ];
        let options = of_remount("rw,nosuid,nodev,relatime", &words.map(str::to_owned));
        assert_eq!(options, "remount,rw,nosuid,nodev,relatime,remount,ro");
    }

    #[test]
    fn a_wrong_value_is_told_by_the_name_that_fstab_has() {
        let words = told(&["nas:/", "/mnt", "-o", "timeout=xx"]).expect("known");
        let all = ["fsclient".to_owned(), "mount".to_owned()].into_iter();
        let error = Cli::try_parse_from(all.chain(words)).expect_err("no time");
        let said = wrong(&error.to_string());
        assert!(
            said.starts_with("invalid value 'xx' for option 'timeout"),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1);
    }

    #[test]
    fn an_option_that_is_not_known_is_refused_with_those_that_are_unless_mount_is_sloppy() {
        let refused = told(&["nas:/", "/mnt", "-o", "rw,soft"]).expect_err("refused");
        assert!(
            refused.contains("\"soft\"") && refused.contains("timeout=.."),
            "{refused}"
        );
        assert!(told(&["nas:/", "/mnt", "-s", "-o", "rw,soft"]).is_ok());
        assert!(told(&["nas:/", "/mnt", "-o", "ro=1"]).is_err());
    }

    #[test]
    fn every_option_of_fsclient_mount_can_be_given_but_what_a_helper_never_does() {
        let cli = Cli::command();
        let mount = cli.find_subcommand("mount").expect("it is there");
        for option in mount.get_opts().filter_map(|option| option.get_long()) {
            let flag = FLAGS
                .iter()
                .any(|(_, known)| known.strip_prefix("--") == Some(option));
            let known = flag || VALUES.contains(&option);
            assert!(
                known || ["foreground", "by-system"].contains(&option),
                "{option}"
            );
        }
    }

    #[test]
    fn every_option_that_is_passed_on_is_one_of_fsclient_mount() {
        for (option, _) in FLAGS {
            let words = told(&["nas:/", "/mnt", "-o", option]).expect("known");
            let all = ["fsclient".to_owned(), "mount".to_owned()].into_iter();
            assert!(Cli::try_parse_from(all.chain(words)).is_ok(), "{option}");
        }
        for (name, value) in VALUES
            .iter()
            .zip(["30s", "1GiB", "/s", "7", "8", "127.0.0.1:9464"])
        {
            let words = told(&["nas:/", "/mnt", "-o", &format!("{name}={value}")]).expect("known");
            let all = ["fsclient".to_owned(), "mount".to_owned()].into_iter();
            assert!(Cli::try_parse_from(all.chain(words)).is_ok(), "{name}");
        }
    }
}
