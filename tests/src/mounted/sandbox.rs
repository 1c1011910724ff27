//! One temporary folder per test, and what must not be left of it.

use leasefs_host::mounts;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A temporary folder; [`Sandbox::clean`] removes it with all that uses it.
#[derive(Debug)]
pub struct Sandbox {
    root: PathBuf,
}

impl Sandbox {
    /// A fresh folder for the test `name`.
    ///
    /// # Panics
    /// When it can't be made.
    pub fn new(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let unique = format!("leasefs-test-{}-{number}-{name}", std::process::id());
        let root = std::env::temp_dir().join(unique);
        fs::create_dir(&root).unwrap_or_else(|error| panic!("{}: {error}", root.display()));
        Self { root }
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder `name` in it, made if need be.
    ///
    /// # Panics
    /// When it can't be made.
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.root.join(name);
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// Unmounts and ends what still uses the folder, removes it, and tells what it
    /// found: nothing, if all daemons have cleaned up after themselves.
    pub fn clean(&self) -> Vec<String> {
        let mut left = Vec::new();
        for pid in processes_using(&self.root) {
            left.push(format!("process {pid} ({})", command_line(pid)));
            kill(pid);
        }
        for mount in mounts_below(&self.root).iter().rev() {
            left.push(format!("mount {}", mount.display()));
            unmount(mount);
        }
        if !mounts_below(&self.root).is_empty() {
            left.push(format!("{} can't be unmounted", self.root.display()));
        } else if let Err(error) = fs::remove_dir_all(&self.root) {
            left.push(format!("{}: {error}", self.root.display()));
        }
        left
    }

    /// The last lines of every log in the folder.
    pub fn log_tails(&self) -> String {
        let mut tails = String::new();
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let mut logs: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        logs.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
        logs.sort();
        for log in logs {
            let text = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            let from = lines.len().saturating_sub(TAIL);
            tails.push_str(&format!("--- {} (last lines)\n", log.display()));
            tails.push_str(&lines[from..].join("\n"));
            tails.push('\n');
        }
        tails
    }
}

const TAIL: usize = 40;

/// The mount points at or below `path`, in the order in which they were mounted.
pub fn mounts_below(path: &Path) -> Vec<PathBuf> {
    let table = mounts::table().unwrap_or_default();
    let points = table.into_iter().map(|mount| mount.point);
    points.filter(|point| point.starts_with(path)).collect()
}

/// Detaches a mount whatever state its daemon is in.
pub(super) fn unmount(mount: &Path) {
    let quiet = Command::new("fusermount3").arg("-uz").arg(mount).output();
    if !quiet.is_ok_and(|output| output.status.success()) {
        let _ = Command::new("umount").arg("-l").arg(mount).output();
    }
}

fn kill(pid: u32) {
    for signal in ["-KILL", "-CONT"] {
        let _ = Command::new("kill")
            .arg(signal)
            .arg(pid.to_string())
            .output();
    }
}

/// Processes other than this one with the folder on their command line.
fn processes_using(folder: &Path) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let folder = folder.as_os_str().as_bytes();
    let uses = |pid: &u32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.windows(folder.len()).any(|part| part == folder)
    };
    pids.filter(|pid| *pid != std::process::id())
        .filter(uses)
        .collect()
}

fn command_line(pid: u32) -> String {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&arguments).replace('\0', " ")
}

#[cfg(test)]
mod tests {
    use super::super::wait::eventually;
    use super::*;
    use std::process::Stdio;
    use std::time::Duration;

    #[test]
    fn a_clean_folder_leaves_nothing() {
        let sandbox = Sandbox::new("clean");
        sandbox.folder("a/b");
        assert_eq!(sandbox.clean(), Vec::<String>::new());
        assert!(!sandbox.root().exists());
    }

    #[test]
    fn a_process_that_is_left_is_ended_and_reported() {
        let sandbox = Sandbox::new("left");
        // It waits without a child of its own, which nobody would end.
        let script = format!("read -r _ # {}", sandbox.root().display());
        let child = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .spawn();
        let mut child = child.expect("a shell");
        // The kernel lets `spawn` return before the new command line is there to be read.
        let shows = || {
            processes_using(sandbox.root())
                .contains(&child.id())
                .then_some(())
        };
        eventually(
            "the command line",
            Duration::from_secs(5),
            shows,
            String::new,
        );
        let left = sandbox.clean();
        assert!(left.iter().any(|line| line.contains("read -r")), "{left:?}");
        child.wait().expect("it has ended");
    }
}
