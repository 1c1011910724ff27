//! A daemon's life: make the mount, keep it, end it without leaving anything behind.

use super::assemble::{self, Assembled};
use super::ending::{Work, while_it_may};
use super::heap;
use super::job::Job;
use super::listen::{self, Listener, Unmount};
use super::log;
use super::metrics::PREFIX;
use super::mounts;
use super::ready::Ready;
use super::signals::Signals;
use super::sleeping;
use super::state::StateDir;
use super::waking;
use crate::fuse::Driver;
use crate::recovery::path_for_people;
use leasefs_client::{Call, Event};
use leasefs_metrics::Endpoint;
use leasefs_protocol::limits::MAX_CALLERS;
use leasefs_protocol::{Handle, Refusal};
use leasefs_transport::network_threads;
use std::fmt::Display;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// How long the kernel may take to end the connection of what is unmounted.
const END: Duration = Duration::from_secs(5);
/// How long another daemon of the same mount point is waited for, which is ending.
const PREDECESSOR: Duration = Duration::from_secs(30);
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes of a job.
const LONGEST_JOB: u64 = 64 << 10;

/// How a mount's process fails, in words for people.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// There is no mount, or it has failed.
    #[error("{0}")]
    NoMount(String),
    /// It is unmounted, and not all that was written through it is on the server's disk.
    #[error("{0}")]
    LeftBehind(String),
}

/// Runs the mount in this process until it is unmounted or told to end by a signal.
///
/// # Errors
/// As [`Failure`] says.
pub fn run_foreground(job: Job) -> Result<(), Failure> {
    log::start();
    run(&job, Ready::Foreground)
}

/// Runs the mount as a daemon: the job comes on standard input, the verdict goes to standard
/// output, logs go to standard error.
pub fn run_detached() -> ExitCode {
    close_inherited();
    log::start();
    let mut text = Vec::new();
    let read = io::stdin().take(LONGEST_JOB).read_to_end(&mut text);
    let job = read
        .map_err(|e| e.to_string())
        .and_then(|_| serde_json::from_slice::<Job>(&text).map_err(|e| e.to_string()));
    let result = match job {
        Ok(job) => {
            if !job.by_system {
                // Fails only for the leader of a process group, which a fresh child is not.
                let _ = rustix::process::setsid();
            }
            run(&job, Ready::Parent)
        }
        Err(error) => {
            let message = format!("no job on standard input: {error}");
            Ready::Parent.failed(&message);
            Err(Failure::NoMount(message))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tracing::error!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// A daemon must not keep open what the shell that started it had open.
fn close_inherited() {
    // SAFETY: called first in the process; nothing of it owns a descriptor above 2 yet.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32);
    }
}

fn run(job: &Job, ready: Ready) -> Result<(), Failure> {
    heap::unite();
    let runtime = Builder::new_multi_thread()
        .worker_threads(network_threads())
        .enable_all()
        .thread_name("leasefs")
        .build()
        .map_err(|e| Failure::NoMount(format!("can't start: {e}")))?;
    let result = runtime.block_on(live(job, ready, &runtime));
    // What is still blocked in the kernel ends with the process.
    runtime.shutdown_background();
    result
}

async fn live(job: &Job, ready: Ready, runtime: &Runtime) -> Result<(), Failure> {
    let made = make(job, runtime).await;
    let Made {
        listener,
        assembled,
        mut signals,
        metrics,
    } = match made {
        Ok(made) => made,
        Err(message) => {
            ready.failed(&message);
            return Err(Failure::NoMount(message));
        }
    };
    tracing::info!(dir = %job.dir.display(), source = %assembled.source, "mounted");
    if let Some(note) = assembled.nobody() {
        ready.note(&note);
    }
    ready.ready(&job.dir);
    let assembled = Arc::new(assembled);
    let driver = Arc::downgrade(&assembled.driver);
    runtime.spawn(sleeping::watch(driver.clone()));
    runtime.spawn(heap::watch());
    let woken = move || {
        if let Some(driver) = driver.upgrade() {
            driver.drive(Event::Tick);
        }
    };
    if let Err(error) = waking::watch(woken) {
        tracing::warn!(%error, "a suspend is noticed within 100 ms only");
    }
    let (asked, mut unmounts) = mpsc::channel(MAX_CALLERS);
    let answering = listener.serve(assembled.clone(), asked);
    let told = assembled.clone();
    let metrics = metrics.map(|endpoint| endpoint.serve(PREFIX, move |page| told.tell(page)));
    let ended = until_unmounted(&assembled, &mut signals, &mut unmounts).await;
    // Nobody has unmounted it: the kernel's connection to this daemon was broken off.
    let aborted = mounts::is_leasefs(&job.dir).unwrap_or(false);
    // Before the mount point is another's, who may want its address.
    drop(metrics);
    assembled.driver.goodbye().await;
    tracing::info!(dir = %job.dir.display(), "unmounted");
    // Who has asked for what happened anyway is told how it went.
    unmounts.close();
    while let Some(Unmount { reply, .. }) = unmounts.recv().await {
        let _ = reply.send(ended.clone());
    }
    answering.end().await;
    ended.map_err(match aborted {
        true => Failure::NoMount,
        false => Failure::LeftBehind,
    })
}

/// What a mount lives by.
struct Made {
    listener: Listener,
    assembled: Assembled,
    signals: Signals,
    metrics: Option<Endpoint>,
}

async fn make(job: &Job, runtime: &Runtime) -> Result<Made, String> {
    let signals = Signals::new().map_err(|e| format!("can't take signals: {e}"))?;
    let (dir, listener) = take_place(&job.dir).await?;
    let state = StateDir::open(Some(&job.state), &dir)?;
    let metrics = match &job.metrics {
        Some(place) => Some(Endpoint::bind(place).await?),
        None => None,
    };
    let assembled = assemble::assemble(job, &state, runtime.handle().clone()).await?;
    Ok(Made {
        listener,
        assembled,
        signals,
        metrics,
    })
}

/// The mount point, for this daemon alone. One that has unmounted, and not yet brought everything in, is waited for.
async fn take_place(dir: &Path) -> Result<(PathBuf, Listener), String> {
    let begun = Instant::now();
    loop {
        let dir = mounts::prepare(dir)?;
        if let Some(listener) = listen::bind(&dir)? {
            return Ok((dir, listener));
        }
        if begun.elapsed() > PREDECESSOR {
            return Err(format!(
                "another daemon is mounting, or unmounting, {}",
                dir.display()
            ));
        }
        sleep(LOOK).await;
    }
}

async fn until_unmounted(
    assembled: &Arc<Assembled>,
    signals: &mut Signals,
    unmounts: &mut mpsc::Receiver<Unmount>,
) -> Result<(), String> {
    loop {
        tokio::select! {
            () = assembled.mounted.ended() => {
                assembled.unmounting.store(true, Ordering::Relaxed);
                return bring_in(assembled, signals, false).await;
            }
            () = signals.any() => {
                assembled.unmounting.store(true, Ordering::Relaxed);
                return end_by_signal(assembled, signals).await;
            }
            Some(Unmount { force, reply }) = unmounts.recv() => {
                assembled.unmounting.store(true, Ordering::Relaxed);
                let unmounted = tokio::select! {
                    unmounted = unmount_on_demand(assembled, force) => unmounted,
                    () = signals.any() => {
                        let result = end_by_signal(assembled, signals).await;
                        // Whoever asked may have gone.
                        let _ = reply.send(result.clone());
                        return result;
                    }
                };
                let done = unmounted.is_ok();
                assembled.unmounting.store(done, Ordering::Relaxed);
                let result = match unmounted {
                    Ok(first) => bring_in(assembled, signals, force).await.and(first),
                    Err(message) => Err(message),
                };
                // Whoever asked may have gone.
                let _ = reply.send(result.clone());
                if done {
                    return result;
                }
            }
        }
    }
}

/// Brings buffered writes to the server's disk, as long as it gets on, or until a signal comes; nothing
/// writes any more. What can't be brought there is kept in the recovery folder.
async fn bring_in(
    assembled: &Arc<Assembled>,
    signals: &mut Signals,
    force: bool,
) -> Result<(), String> {
    let driver = &assembled.driver;
    let brought = tokio::select! {
        brought = bring(assembled, force) => brought,
        () = signals.any() => Err("cut short by a signal".to_owned()),
    };
    let failed = match brought {
        Ok(()) => return nothing_left_behind(assembled).await,
        Err(failed) => failed,
    };
    let keeper = driver.clone();
    let kept = tokio::task::spawn_blocking(move || keeper.keep_all()).await;
    Err(match kept {
        Ok((0, 0)) => not_on_disk(&failed),
        Ok((kept, 0)) => format!(
            "buffered writes of {kept} file(s) could not be brought to the server ({failed}); \
             see `fsclient recover list{}`",
            assembled.state_option()
        ),
        Ok((kept, lost)) => format!(
            "buffered writes of {lost} file(s) are LOST: they could neither be brought to the server ({failed}) nor be \
             kept here (the log says why); {kept} file(s) are kept"
        ),
        Err(error) => format!("buffered writes are lost: {error}"),
    })
}

fn not_on_disk(why: &dyn Display) -> String {
    format!("it is unmounted, but what was written last may not be on the server's disk: {why}")
}

async fn bring(assembled: &Arc<Assembled>, force: bool) -> Result<(), String> {
    match brought(assembled, force, Driver::has_changed).await {
        Some(Ok(())) => Ok(()),
        Some(Err(refusal)) => Err(refusal.to_string()),
        None => Err(why_not(&assembled.driver)),
    }
}

/// What is buffered goes to the server, and if `syncs` says so what is there to its disk; `None` if that stands still.
async fn brought(
    assembled: &Arc<Assembled>,
    force: bool,
    syncs: impl Fn(&Driver) -> bool,
) -> Option<Result<(), Refusal>> {
    let driver = &assembled.driver;
    let flushed = while_it_may(driver, Work::Flush, force, driver.call(Call::FlushAll)).await?;
    if flushed.is_err() || !syncs(driver) {
        return Some(flushed.map(drop));
    }
    let synced = while_it_may(driver, Work::Commit, force, driver.call(Call::SyncAll)).await?;
    Some(synced.map(drop))
}

/// Why nothing gets to the server.
fn why_not(driver: &Driver) -> String {
    let trouble = driver.session_status().trouble;
    trouble.unwrap_or_else(|| "it doesn't answer".to_owned())
}

/// Everything is on the server's disk but what was refused before.
async fn nothing_left_behind(assembled: &Arc<Assembled>) -> Result<(), String> {
    let driver = assembled.driver.clone();
    match tokio::task::spawn_blocking(move || driver.left_behind()).await {
        Ok(0) => Ok(()),
        Ok(times) => Err(format!(
            "{times} time(s) while it was mounted, written bytes could not be brought to the server; \
             see `fsclient recover list{}`, and discard what you have seen to",
            assembled.state_option()
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// Unmounting calls into the kernel, which may call back: never on a thread of the runtime.
async fn unmount(assembled: &Arc<Assembled>, lazy: bool) -> io::Result<()> {
    let assembled = assembled.clone();
    tokio::task::spawn_blocking(move || assembled.mounted.unmount(lazy))
        .await
        .map_err(io::Error::other)?
}

/// With what the server has refused before it was unmounted, which it says once.
async fn unmount_on_demand(
    assembled: &Arc<Assembled>,
    force: bool,
) -> Result<Result<(), String>, String> {
    let first = match force {
        false => bring_first(assembled).await?,
        true => Ok(()),
    };
    let unmounted = match force {
        false => unmount(assembled, false).await,
        true => within_write_back(assembled, true).await,
    };
    match unmounted {
        Ok(()) => {
            ended(assembled).await;
            Ok(first)
        }
        Err(error) if force => {
            tracing::warn!(%error, "unmounting by force");
            write_pages_back(assembled, true).await;
            unmount_lazily(assembled).await;
            Ok(first)
        }
        Err(error) => Err(busy(assembled.mounted.mountpoint(), &error)),
    }
}

/// An unmount that isn't forced keeps the mount until the bytes that were written are on the server's disk. Of other changes
/// nothing can be kept here: a server that is gone for good is no reason to wait.
async fn bring_first(assembled: &Arc<Assembled>) -> Result<Result<(), String>, String> {
    let driver = &assembled.driver;
    let keeps_bytes = |driver: &Driver| driver.cache_status().memory.unstable > 0;
    match brought(assembled, false, keeps_bytes).await {
        // That is tried again.
        Some(Ok(()) | Err(Refusal::TimedOut | Refusal::Cancelled)) => Ok(Ok(())),
        Some(Err(refusal)) => Ok(Err(not_on_disk(&refusal))),
        None => Err(format!(
            "can't unmount {}: {} ({}); --force unmounts it and keeps it for `fsclient recover`",
            assembled.mounted.mountpoint().display(),
            what_waits(driver),
            why_not(driver)
        )),
    }
}

/// What doesn't get to the server, for people.
fn what_waits(driver: &Driver) -> String {
    let name = |(object, path): (Handle, Option<PathBuf>)| {
        path.map_or_else(|| object.to_string(), |path| path_for_people(&path))
    };
    let dirty: Vec<String> = driver.dirty_files().into_iter().map(name).collect();
    match dirty.is_empty() {
        true => "what was written last may not be on the server's disk yet".to_owned(),
        false => format!(
            "what was written to {} can't be brought to the server",
            dirty.join(", ")
        ),
    }
}

/// Unmounts, unless writing back what is dirty stands still.
async fn within_write_back(assembled: &Arc<Assembled>, force: bool) -> io::Result<()> {
    let unmounted = unmount(assembled, false);
    while_it_may(&assembled.driver, Work::Flush, force, unmounted)
        .await
        .unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
}

fn busy(dir: &Path, error: &io::Error) -> String {
    let holders = mounts::holders(dir);
    let who = match holders.is_empty() {
        true => String::new(),
        false => format!("; in use by {}", holders.join(", ")),
    };
    format!(
        "can't unmount {}: {error}{who} (--force unmounts it all the same)",
        dir.display()
    )
}

/// A signal ends the mount in any case; a second one, or a server that doesn't answer, only makes it
/// rougher.
async fn end_by_signal(assembled: &Arc<Assembled>, signals: &mut Signals) -> Result<(), String> {
    tracing::info!("told to end");
    let unmounted = async {
        let Err(error) = within_write_back(assembled, false).await else {
            return true;
        };
        tracing::warn!("{}", busy(assembled.mounted.mountpoint(), &error));
        write_pages_back(assembled, false).await;
        false
    };
    let clean = tokio::select! {
        clean = unmounted => clean,
        () = signals.any() => false,
    };
    match clean {
        true => ended(assembled).await,
        false => unmount_lazily(assembled).await,
    }
    bring_in(assembled, signals, false).await
}

async fn ended(assembled: &Arc<Assembled>) {
    if timeout(END, assembled.mounted.ended()).await.is_err() {
        tracing::warn!("the kernel has not ended the connection");
    }
}

/// What processes have stored into mapped pages is known to the kernel alone as long as the mount is in use, and would be lost
/// with the connection.
async fn write_pages_back(assembled: &Arc<Assembled>, force: bool) {
    let driver = &assembled.driver;
    let asleep = driver.call(Call::Sleep);
    if while_it_may(driver, Work::Flush, force, asleep)
        .await
        .is_none()
    {
        tracing::warn!("what was stored into mapped files last may be lost");
    }
}

/// Out of the file tree at once; then what is still open fails, rather than hang.
async fn unmount_lazily(assembled: &Arc<Assembled>) {
    if let Err(error) = unmount(assembled, true).await {
        tracing::error!(%error, "can't unmount");
    }
    if let Err(error) = assembled.mounted.abort() {
        tracing::debug!(%error, "the connection ends with the process");
    }
}
