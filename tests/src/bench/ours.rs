//! leasefs on a link: a server, and four mounts by a client each.

use super::System;
use super::counts::{Counters, cpu_time, datagrams, resident};
use crate::link::{Link, SERVER};
use crate::mounted::{Mount, Requests, World, WorldOptions};
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How many mounts there are.
const MOUNTS: usize = 4;
/// What is the same for so long is not under way.
const QUIET: Duration = Duration::from_millis(100);
/// Nothing is under way for longer.
const LIMIT: Duration = Duration::from_secs(60);

/// A server with its mounts.
#[derive(Debug)]
pub struct Ours {
    world: World,
    dirs: Vec<PathBuf>,
}

impl Ours {
    /// Serves a directory across the link; mounts with these options besides.
    ///
    /// # Panics
    /// When something does not start in time.
    pub fn start(link: &Link, export: &Path, options: &[String]) -> Self {
        let mut world = WorldOptions::mounts(MOUNTS).export(export);
        world.server.network = Some((link.server.clone(), SERVER));
        world.mount.namespace = Some(link.client.clone());
        world.mount.options = options.to_vec();
        let world = World::start("bench", &world);
        let dirs = world.mounts.iter().map(|mount| mount.dir.clone()).collect();
        Self { world, dirs }
    }

    /// Requests sent; and of the kernel; and whether something waits to be sent.
    fn asked(&self) -> (Requests, u64, bool) {
        let (mut requests, mut kernel, mut waits) = (Requests::default(), 0, false);
        for mount in &self.world.mounts {
            let status = mount.status();
            let number = |path: &str| {
                status
                    .pointer(&format!("/mounts/0/{path}"))
                    .and_then(Value::as_u64)
                    .unwrap_or_default()
            };
            requests.add(&Requests::told_by(&status));
            kernel += number("kernel_requests");
            waits |= number("dirty/files") > 0;
        }
        (requests, kernel, waits)
    }

    fn processor_time(&self, mounts: &[Mount]) -> io::Result<Duration> {
        mounts
            .iter()
            .map(|mount| cpu_time(mount.daemon.pid()))
            .sum()
    }
}

impl System for Ours {
    fn name(&self) -> &'static str {
        "leasefs"
    }

    fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    fn is_coherent(&self) -> bool {
        true
    }

    fn remount(&mut self) -> io::Result<()> {
        self.world.remount(0);
        Ok(())
    }

    fn settled(&mut self) -> io::Result<Option<Counters>> {
        let begin = Instant::now();
        let (mut last, mut same_since) = (self.asked(), Instant::now());
        while last.2 || same_since.elapsed() < QUIET {
            if begin.elapsed() > LIMIT {
                return Err(io::Error::other("the mounts go on sending requests"));
            }
            thread::sleep(QUIET / 2);
            let now = self.asked();
            if now.0 != last.0 {
                same_since = Instant::now();
            }
            last = now;
        }
        let mounts = &self.world.mounts;
        let first = mounts.first().map(|mount| mount.daemon.pid());
        Ok(Some(Counters {
            requests: last.0,
            kernel: last.1,
            datagrams: first.map(datagrams).transpose()?.unwrap_or_default(),
            server: cpu_time(self.world.server.daemon.pid())?,
            clients: self.processor_time(mounts)?,
        }))
    }

    fn resident(&self) -> Option<u64> {
        let mounts = self.world.mounts.iter();
        mounts.map(|mount| resident(mount.daemon.pid()).ok()).sum()
    }
}
