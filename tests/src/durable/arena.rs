//! Crashes on real daemons while writers are at work, and what is there afterwards.

use super::crew::{Crew, Member};
use super::snapshot::{Snapshot, home, log, stripes};
use super::verify::{Expect, Witness, verify};
use crate::mounted::{StateOn, World, WorldOptions, in_background, within};
use crate::rng::Rng;
use rustix::process::Signal;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Writers, half of them on each mount.
const WRITERS: u16 = 4;
const MOUNTS: usize = 2;
/// Size of the file that they share by stripes.
const STRIPES_SIZE: u64 = 64 * 1024;
/// The shortest there is: a client that has died costs the others this long.
const TERM: &str = "1s";
const LIMIT: Duration = Duration::from_secs(60);
/// For reading everything: a debug build on a busy machine.
const READING: Duration = Duration::from_secs(120);

/// What crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// A client's daemon (SIGKILL).
    Client,
    /// The server's process (SIGKILL).
    Server,
    /// Both at once.
    Both,
    /// The storage host: its disk keeps only what was durable, the server finds another boot id.
    Power,
}

/// What a round came to.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Calls that have ended well.
    pub calls: usize,
    /// Of them, acknowledgements of durability.
    pub synced: usize,
    /// Calls that have failed.
    pub failed: usize,
    /// What must not be, in words.
    pub findings: Vec<String>,
}

/// A server and two mounts that crash again and again.
#[derive(Debug)]
pub struct Arena {
    world: World,
    rng: Rng,
    rounds: u32,
}

impl Arena {
    /// An arena for crashes of processes; on a storage that can lose its power, for that too.
    ///
    /// # Panics
    /// If something does not start in time.
    pub fn new(name: &str, seed: u64, storage: Option<StateOn>) -> Self {
        let options = WorldOptions::mounts(MOUNTS).term(TERM);
        let world = match storage {
            None => World::start(name, &options),
            Some(state) => World::start_on_storage(name, &options, state),
        };
        Self {
            world,
            rng: Rng::new(seed),
            rounds: 0,
        }
    }

    /// Writers work, the crash comes, those that can go on do so for a while; then all that is
    /// there is compared with what they were told.
    ///
    /// # Panics
    /// If something does not come back in time.
    pub fn round(&mut self, crash: Crash) -> Report {
        let seed = self.rng.next_u64();
        let root = PathBuf::from(format!("r{}", self.rounds));
        self.rounds += 1;
        self.prepare(root.clone());
        let victim = matches!(crash, Crash::Client | Crash::Both).then(|| self.rng.below(MOUNTS));
        let journals = self.world.sandbox.folder("journals");
        let mut crew = Crew::start(&journals, &root, seed, WRITERS, |writer| {
            self.world.mounts[usize::from(writer) % MOUNTS].dir.clone()
        });
        crew.have_worked(LIMIT);
        self.pause(300);
        let mut findings = self.strike(crash, victim, &root, &mut crew);
        crew.work_on(LIMIT, |member| victim != Some(self.mount_of(member)));
        self.pause(200);
        let may_die = |member: &Member| match crash {
            // Of SIGBUS, where a mapped page can't be read any more.
            Crash::Power => member.was_killed_by(libc::SIGBUS),
            _ => victim == Some(self.mount_of(member)),
        };
        findings.extend(crew.end(LIMIT, may_die));
        let witnesses = self.witnesses(&crew, crash, victim);
        findings.extend(self.compare(seed, &root, &witnesses));
        if crash == Crash::Power {
            self.cut_power();
            findings.extend(self.check_export(seed, &root, &witnesses));
            self.world.server.start_again();
        }
        findings.extend(unexpected_failures(crash, &witnesses));
        if !findings.is_empty() {
            println!("{}{}", crew.journals(), self.world.sandbox.log_tails());
        }
        self.tidy(root);
        Report::new(&crew, findings)
    }

    fn pause(&mut self, longest_ms: usize) {
        thread::sleep(Duration::from_millis(self.rng.below(longest_ms) as u64));
    }

    fn mount_of(&self, member: &Member) -> usize {
        usize::from(member.writer) % MOUNTS
    }

    /// The directories and common files of a round, durable.
    fn prepare(&self, root: PathBuf) {
        let mount = self.world.mounts[0].dir.clone();
        let made = within("preparing a round", LIMIT, move || {
            prepare(&mount, &mount.join(root))
        });
        made.0.expect("a round can be prepared");
    }

    fn tidy(&self, root: PathBuf) {
        let root = self.world.mounts[1].dir.join(root);
        let removed = within("tidying up", READING, move || fs::remove_dir_all(root));
        removed
            .0
            .expect("what the writers have left can be removed");
    }

    /// The crash, and all up again. What a power cut has left is looked at before that.
    fn strike(
        &mut self,
        crash: Crash,
        victim: Option<usize>,
        root: &Path,
        crew: &mut Crew,
    ) -> Vec<String> {
        let mut findings = Vec::new();
        if let Some(victim) = victim {
            self.world.mounts[victim].daemon.signal(Signal::KILL);
        }
        match crash {
            Crash::Client => {}
            Crash::Server | Crash::Both => {
                self.world.server.daemon.kill();
                self.world.server.start_again();
            }
            Crash::Power => {
                self.cut_power();
                let witnesses = self.witnesses(crew, crash, victim);
                findings = self.check_export(crew.seed, root, &witnesses);
                self.world.server.start_again();
            }
        }
        if let Some(victim) = victim {
            self.world.kill_client(victim);
            crew.lose(LIMIT, |member| {
                usize::from(member.writer) % MOUNTS == victim
            });
            self.world.mount_again(victim);
        }
        findings
    }

    /// The storage host crashes, perhaps while it writes back; what is durable is mounted again.
    fn cut_power(&mut self) {
        let disk = self.world.storage().dir().to_owned();
        let write_back = move || Ok(rustix::fs::syncfs(File::open(disk)?)?);
        let chance = self.rng.chance(50);
        let writing_back = chance.then(|| in_background("writing back", write_back));
        self.pause(20);
        self.world.power_fails();
        if let Some(mut writing_back) = writing_back {
            // It fails if the storage was faster.
            let _: (io::Result<()>, _) = writing_back.done_within(LIMIT);
        }
        self.world.power_returns();
    }

    fn witnesses(&self, crew: &Crew, crash: Crash, victim: Option<usize>) -> Vec<Witness> {
        let expect = |member: &Member| match crash {
            Crash::Power => Expect::POWER_LOST,
            _ if victim == Some(self.mount_of(member)) => Expect::CLIENT_DIED,
            _ => Expect::ALL_RETURNED,
        };
        let members = crew.members.iter();
        let witnesses = members.map(|member| Witness {
            model: member.model(STRIPES_SIZE),
            expect: expect(member),
        });
        witnesses.collect()
    }

    fn check_export(&self, seed: u64, root: &Path, witnesses: &[Witness]) -> Vec<String> {
        let root = self.world.server.export.join(root);
        let found = Snapshot::take(&root, WRITERS).map(|found| verify(seed, witnesses, &found));
        let findings = found.unwrap_or_else(|error| vec![error.to_string()]);
        prefixed("on the disk", findings)
    }

    /// What the mounts and the export show: the same, and what the journals allow.
    fn compare(&self, seed: u64, root: &Path, witnesses: &[Witness]) -> Vec<String> {
        let seen = |dir: PathBuf| {
            let what = format!("reading {}", dir.display());
            within(what, READING, move || Snapshot::take(&dir, WRITERS)).0
        };
        let mounts = self.world.mounts.iter().map(|mount| mount.dir.join(root));
        let views: io::Result<Vec<Snapshot>> = mounts
            .chain([self.world.server.export.join(root)])
            .map(seen)
            .collect();
        let views = match views {
            Ok(views) => views,
            Err(error) => return vec![error.to_string()],
        };
        let mut findings = prefixed("on a mount", verify(seed, witnesses, &views[0]));
        for (other, view) in views.iter().enumerate().skip(1) {
            if let Some(difference) = views[0].difference(view) {
                let whom = if other < MOUNTS {
                    "mount 1"
                } else {
                    "the export"
                };
                findings.push(format!("mount 0 and {whom} differ: {difference}"));
            }
        }
        findings
    }
}

fn prefixed(place: &str, findings: Vec<String>) -> Vec<String> {
    let findings = findings.into_iter();
    findings
        .map(|finding| format!("{place}: {finding}"))
        .collect()
}

fn prepare(mount: &Path, root: &Path) -> io::Result<()> {
    let durable = |path: &Path| File::open(path)?.sync_all();
    fs::create_dir(root)?;
    let shared = File::create_new(stripes(root))?;
    shared.set_len(STRIPES_SIZE)?;
    shared.sync_all()?;
    File::create_new(log(root))?.sync_all()?;
    for writer in 0..WRITERS {
        fs::create_dir(home(root, writer))?;
        durable(&home(root, writer))?;
    }
    durable(root)?;
    durable(mount)
}

/// How calls may fail whose answer is lost, and those on files and names that are gone.
const AFTER_POWER_CUT: [i32; 3] = [libc::EIO, libc::ESTALE, libc::ENOENT];

/// Failures that the crash doesn't account for.
fn unexpected_failures(crash: Crash, witnesses: &[Witness]) -> Vec<String> {
    let expected = |witness: &Witness, errno: i32| match crash {
        // Its own calls may have been cut short.
        _ if witness.expect == Expect::CLIENT_DIED => {
            [libc::EIO, libc::ENOTCONN, libc::ECONNABORTED].contains(&errno)
        }
        Crash::Client => false,
        // A change that was under way, whose answer is lost.
        Crash::Server | Crash::Both => errno == libc::EIO,
        // That too, and what has become of names and files that weren't durable.
        Crash::Power => AFTER_POWER_CUT.contains(&errno),
    };
    let mut findings = Vec::new();
    for (writer, witness) in witnesses.iter().enumerate() {
        let failures = witness.model.failures.iter();
        for (seq, op, errno) in failures.filter(|(_, _, errno)| !expected(witness, *errno)) {
            let why = io::Error::from_raw_os_error(*errno);
            findings.push(format!(
                "writer {writer}: call {seq}, {op:?}, failed: {why}"
            ));
        }
    }
    findings
}

impl Report {
    fn new(crew: &Crew, findings: Vec<String>) -> Self {
        let mut report = Self {
            findings,
            ..Self::default()
        };
        for member in &crew.members {
            let (calls, synced, failed) = member.counts();
            report.calls += calls;
            report.synced += synced;
            report.failed += failed;
        }
        report
    }
}
