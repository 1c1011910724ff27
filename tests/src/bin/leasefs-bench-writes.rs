//! Measures what buffered writes reach of what they could.
//!
//! Small ones against a file system that answers at once on the same FUSE session, large ones that
//! end in `fsync` against the transport and the disk below them; both against writing through.

use bytes::Bytes;
use clap::Parser;
use leasefs_protocol::control::ToServer;
use leasefs_tests::mounted::requests;
use leasefs_transport::{
    Connection, EndpointSecret, FrameReader, FrameWriter, Identity, OutFrame, Server, connect,
};
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use tokio::task::JoinSet;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const MIB: usize = 1 << 20;
const SMALL: usize = 4 << 10;
/// The least part of what a session can do that small writes must reach.
const SMALL_TARGET: f64 = 0.7;
/// The least part of what transport and disk can do that large writes must reach.
const LARGE_TARGET: f64 = 0.6;
/// Streams of bulk data that a client uses.
const LANES: usize = 3;

/// Measures in turn, several rounds, and prints median rates and ratios.
#[derive(Parser)]
#[command(name = "leasefs-bench-writes", version)]
struct Arguments {
    /// A mount that buffers writes.
    #[arg(long)]
    buffered: PathBuf,
    /// Its state directory.
    #[arg(long)]
    state: PathBuf,
    /// A mount that doesn't.
    #[arg(long)]
    through: PathBuf,
    /// A mount of leasefs-null.
    #[arg(long)]
    null: PathBuf,
    /// The server's disk, or one like it.
    #[arg(long)]
    disk: PathBuf,
    /// How often each is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=99))]
    rounds: u16,
    /// MiB of small writes.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    small_mib: u16,
    /// MiB of large writes.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..))]
    large_mib: u16,
}

/// MiB per second of each round, under what they are of.
struct Rates(Vec<(&'static str, Vec<f64>)>);

impl Rates {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn add(&mut self, name: &'static str, rate: f64) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, rates)) => rates.push(rate),
            None => self.0.push((name, vec![rate])),
        }
    }

    fn of(&self, name: &str) -> &[f64] {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.map_or(&[], |(_, rates)| rates)
    }

    fn print(&self, title: &str) {
        println!("{title} (MiB/s)");
        for (name, rates) in &self.0 {
            println!("  {name:22} {:>8.0}", median(rates.clone()));
        }
    }

    /// The median over the rounds of what `numerator` reached of what `denominator` says.
    fn ratio(&self, numerator: &str, denominator: impl Fn(usize) -> f64) -> f64 {
        let rates = self.of(numerator).iter().enumerate();
        median(
            rates
                .map(|(round, rate)| rate / denominator(round))
                .collect(),
        )
    }

    fn at(&self, name: &str, round: usize) -> f64 {
        self.of(name).get(round).copied().unwrap_or(f64::NAN)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn verdict(ratio: f64, target: f64) -> String {
    let met = if ratio >= target { "met" } else { "MISSED" };
    format!("{ratio:.2} (target {target}: {met})")
}

fn rate(mib: usize, since: Instant) -> f64 {
    mib as f64 / since.elapsed().as_secs_f64()
}

fn path_in(dir: &Path) -> PathBuf {
    dir.join(format!("leasefs-bench-writes.{}", std::process::id()))
}

/// Small writes in sequence, without `fsync`. What follows is not counted.
fn small(dir: &Path, mib: usize) -> io::Result<f64> {
    let mut file = File::create(path_in(dir))?;
    let block = [0x5a; SMALL];
    let begin = Instant::now();
    for _ in 0..mib * MIB / SMALL {
        file.write_all(&block)?;
    }
    Ok(rate(mib, begin))
}

/// The rest of [`small`], for all but the file system that keeps nothing.
fn settle(dir: &Path) -> io::Result<()> {
    let path = path_in(dir);
    File::options().write(true).open(&path)?.sync_all()?;
    fs::remove_file(path)
}

/// Large writes in sequence and `fsync`.
fn large(dir: &Path, mib: usize) -> io::Result<f64> {
    let path = path_in(dir);
    let mut file = File::create(&path)?;
    let block = vec![0x5a; MIB];
    let begin = Instant::now();
    for _ in 0..mib {
        file.write_all(&block)?;
    }
    file.sync_all()?;
    let rate = rate(mib, begin);
    fs::remove_file(path)?;
    Ok(rate)
}

/// A connection of the transport over loopback, with the streams a client uses.
struct Transport {
    /// Held open.
    _server: Server,
    _client: Connection,
    _served: Connection,
    lanes: Vec<(FrameWriter, FrameReader)>,
}

impl Transport {
    async fn start() -> Result<Self> {
        let identity = Identity::generate()?;
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = Server::bind(any, &identity, &EndpointSecret::generate()?)?;
        let guest = Identity::generate()?;
        let (client, served) = tokio::join!(
            connect(server.local_addr(), &guest, identity.key_hash()),
            async {
                let incoming = server.accept().await.ok_or("closed")?;
                Result::Ok(incoming.handshake().await?)
            }
        );
        let (client, served) = (client?, served?);
        served.let_in();
        let mut lanes = Vec::new();
        // Before the bulk lanes come the control stream and the lane of small requests.
        for index in 0..LANES + 2 {
            let (mut writer, _) = client.open().await?;
            writer.send(&ToServer::ReclaimDone, Bytes::new()).await?;
            let (_, _, mut reader) = served.accept().await?;
            reader.next::<ToServer>().await?;
            if index >= 2 {
                lanes.push((writer, reader));
            }
        }
        Ok(Self {
            _server: server,
            _client: client,
            _served: served,
            lanes,
        })
    }

    /// Carries so many messages of 1 MiB, as many on each stream.
    async fn carry(self, mib: usize) -> Result<f64> {
        let begin = Instant::now();
        let mut ends = JoinSet::new();
        let block = Bytes::from(vec![0x5a; MIB]);
        let each = mib.div_ceil(self.lanes.len());
        for (writer, mut reader) in self.lanes {
            let (outbox, block) = (writer.into_outbox(), block.clone());
            ends.spawn(async move {
                for _ in 0..each {
                    let frame = OutFrame::new(&ToServer::Goodbye, block.clone())?;
                    outbox.send(frame).await?;
                }
                Result::Ok(())
            });
            ends.spawn(async move {
                while reader.next::<ToServer>().await?.is_some() {}
                Ok(())
            });
        }
        ends.join_all().await.into_iter().collect::<Result<()>>()?;
        Ok(rate(each * LANES, begin))
    }
}

fn transport(mib: usize) -> Result<f64> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async { Transport::start().await?.carry(mib).await })
}

fn small_writes(arguments: &Arguments) -> Result<()> {
    let mib = usize::from(arguments.small_mib);
    let (mut rates, mut sent) = (Rates::new(), Vec::new());
    for _ in 0..arguments.rounds {
        rates.add("null", small(&arguments.null, mib)?);
        let before = requests(&arguments.buffered, &arguments.state);
        rates.add("write-back", small(&arguments.buffered, mib)?);
        settle(&arguments.buffered)?;
        let after = requests(&arguments.buffered, &arguments.state);
        sent.push(after.since(&before).total() as f64);
        rates.add("write-through", small(&arguments.through, mib)?);
        settle(&arguments.through)?;
    }
    rates.print("4 KiB writes in sequence, no fsync");
    let to_null = rates.ratio("write-back", |round| rates.at("null", round));
    let to_through = rates.ratio("write-back", |round| rates.at("write-through", round));
    println!(
        "  of a session that answers at once: {}",
        verdict(to_null, SMALL_TARGET)
    );
    println!("  of writing through: {to_through:.1}");
    println!(
        "  requests for {} writes: {:.0}, fsync and unlink included",
        mib * MIB / SMALL,
        median(sent)
    );
    Ok(())
}

fn large_writes(arguments: &Arguments) -> Result<()> {
    let mib = usize::from(arguments.large_mib);
    let mut rates = Rates::new();
    for _ in 0..arguments.rounds {
        rates.add("transport", transport(mib)?);
        rates.add("disk", large(&arguments.disk, mib)?);
        rates.add("write-back", large(&arguments.buffered, mib)?);
        rates.add("write-through", large(&arguments.through, mib)?);
    }
    rates.print("1 MiB writes in sequence, fsync at the end");
    let one_after_the_other =
        |round| 1.0 / (1.0 / rates.at("transport", round) + 1.0 / rates.at("disk", round));
    let reached = rates.ratio("write-back", one_after_the_other);
    println!(
        "  of transport and disk one after the other: {}",
        verdict(reached, LARGE_TARGET)
    );
    let slower = |round| rates.at("transport", round).min(rates.at("disk", round));
    println!(
        "  of the slower of both: {:.2}",
        rates.ratio("write-back", slower)
    );
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match small_writes(&arguments).and_then(|()| large_writes(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leasefs-bench-writes: {error}");
            ExitCode::FAILURE
        }
    }
}
