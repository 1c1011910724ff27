//! Measures the same work in several directories in turn and prints the ratios.

use clap::Parser;
use rustix::fs::{Advice, fadvise};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// What one `read` of the streaming measures asks for.
const READ_SIZE: usize = 128 << 10;
const SMALL_FILE: usize = 4 << 10;
/// The least a timed pass over cached attributes must take to be worth reading.
const SHORTEST_PASS: Duration = Duration::from_millis(200);

/// Does the same work in each directory in turn, several rounds, and prints for
/// each the median rate and the median ratio to the first directory in its round.
#[derive(Parser)]
#[command(name = "leasefs-bench", version)]
struct Arguments {
    /// Where to work; the first is what the others are compared with.
    #[arg(required = true, value_name = "NAME=DIR")]
    places: Vec<Place>,
    /// How often each is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=99))]
    rounds: u16,
    /// Size of the large file.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    mib: u16,
    /// Number of small files.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..))]
    files: u16,
}

/// A directory under its short name.
#[derive(Clone)]
struct Place {
    name: String,
    dir: PathBuf,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, dir) = text.split_once('=').ok_or("expected NAME=DIR")?;
        Ok(Place {
            name: name.to_owned(),
            dir: PathBuf::from(dir),
        })
    }
}

/// One kind of work; its rate is in `unit` per second.
struct Measure {
    title: &'static str,
    unit: &'static str,
    /// The ratio to the first directory that the project promises.
    promised: Option<f64>,
    run: fn(&Work) -> io::Result<f64>,
}

const MEASURES: [Measure; 5] = [
    Measure {
        title: "cached file read again",
        unit: "MiB",
        promised: Some(0.9),
        run: read_cached,
    },
    Measure {
        title: "stat of cached files",
        unit: "files",
        promised: Some(0.9),
        run: stat_cached,
    },
    Measure {
        title: "new file written, fsync",
        unit: "MiB",
        promised: None,
        run: write_new,
    },
    Measure {
        title: "file read, caches dropped",
        unit: "MiB",
        promised: None,
        run: read_uncached,
    },
    Measure {
        title: "small files created",
        unit: "files",
        promised: None,
        run: create_small,
    },
];

/// The sizes, and one directory's own files.
struct Work {
    dir: PathBuf,
    mib: usize,
    files: usize,
}

impl Work {
    /// Makes the directory, the large file and the small ones.
    fn prepare(place: &Place, arguments: &Arguments) -> io::Result<Work> {
        let work = Work {
            dir: place
                .dir
                .join(format!("leasefs-bench.{}", std::process::id())),
            mib: usize::from(arguments.mib),
            files: usize::from(arguments.files),
        };
        fs::create_dir(&work.dir)?;
        write_file(&work.large(), work.mib)?;
        fs::create_dir(work.dir.join("small"))?;
        for path in work.small_files("small") {
            fs::write(path, [7; SMALL_FILE])?;
        }
        Ok(work)
    }

    fn large(&self) -> PathBuf {
        self.dir.join("large")
    }

    fn small_files(&self, below: &str) -> Vec<PathBuf> {
        let dir = self.dir.join(below);
        (0..self.files)
            .map(|number| dir.join(format!("file-{number}")))
            .collect()
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            eprintln!("leasefs-bench: {} is left: {error}", self.dir.display());
        }
    }
}

fn write_file(path: &Path, mib: usize) -> io::Result<()> {
    let block = vec![0x5a; MIB];
    let mut file = File::create(path)?;
    for _ in 0..mib {
        file.write_all(&block)?;
    }
    file.sync_all()
}

/// Reads all of the file through a fresh descriptor; its size in bytes.
fn read_file(path: &Path) -> io::Result<usize> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; READ_SIZE];
    let mut total = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(total),
            count => total += count,
        }
    }
}

fn rate(amount: usize, since: Instant) -> f64 {
    amount as f64 / since.elapsed().as_secs_f64()
}

fn read_cached(work: &Work) -> io::Result<f64> {
    read_file(&work.large())?;
    let begin = Instant::now();
    let bytes = read_file(&work.large())?;
    Ok(rate(bytes / MIB, begin))
}

fn stat_cached(work: &Work) -> io::Result<f64> {
    let files = work.small_files("small");
    stat_all(&files)?;
    let begin = Instant::now();
    let mut count = 0;
    while begin.elapsed() < SHORTEST_PASS {
        stat_all(&files)?;
        count += files.len();
    }
    Ok(rate(count, begin))
}

fn stat_all(files: &[PathBuf]) -> io::Result<()> {
    files
        .iter()
        .try_for_each(|path| fs::metadata(path).map(drop))
}

fn write_new(work: &Work) -> io::Result<f64> {
    let path = work.dir.join("written");
    let begin = Instant::now();
    write_file(&path, work.mib)?;
    let rate = rate(work.mib, begin);
    fs::remove_file(path)?;
    Ok(rate)
}

fn read_uncached(work: &Work) -> io::Result<f64> {
    forget(&work.large())?;
    let begin = Instant::now();
    let bytes = read_file(&work.large())?;
    Ok(rate(bytes / MIB, begin))
}

/// Drops the file's pages, and as root everything the kernel caches.
fn forget(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    fadvise(&file, 0, NonZeroU64::new(0), Advice::DontNeed)?;
    match fs::write("/proc/sys/vm/drop_caches", "3") {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Err(error),
        _ => Ok(()),
    }
}

fn create_small(work: &Work) -> io::Result<f64> {
    fs::create_dir(work.dir.join("created"))?;
    let files = work.small_files("created");
    let begin = Instant::now();
    for path in &files {
        fs::write(path, [9; SMALL_FILE])?;
    }
    let rate = rate(files.len(), begin);
    fs::remove_dir_all(work.dir.join("created"))?;
    Ok(rate)
}

/// The rates of one measure: `[round][place]`.
fn measure(what: &Measure, works: &[Work], rounds: u16) -> io::Result<Vec<Vec<f64>>> {
    (0..rounds)
        .map(|_| works.iter().map(what.run).collect())
        .collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The column of `place` in every round.
fn column(rounds: &[Vec<f64>], place: usize) -> Vec<f64> {
    rounds
        .iter()
        .filter_map(|round| round.get(place).copied())
        .collect()
}

fn ratios(rounds: &[Vec<f64>], place: usize) -> Vec<f64> {
    let own = column(rounds, place);
    let first = column(rounds, 0);
    own.iter()
        .zip(first)
        .map(|(own, first)| own / first)
        .collect()
}

fn describe(what: &Measure, places: &[Place], rounds: &[Vec<f64>]) -> String {
    let mut text = format!("{} ({}/s)\n", what.title, what.unit);
    for (index, place) in places.iter().enumerate() {
        let rate = median(column(rounds, index));
        let _ = write!(text, "  {:10} {rate:>12.0}", place.name);
        if index > 0 {
            let ratio = median(ratios(rounds, index));
            let _ = write!(text, "   {ratio:.2} of {}", places[0].name);
            if index == 1 {
                text.push_str(&promise(what, ratio));
            }
        }
        text.push('\n');
    }
    text
}

/// What was promised holds for the second place, the mount; others stand beside.
fn promise(what: &Measure, ratio: f64) -> String {
    match what.promised {
        Some(least) if ratio >= least => format!("   (target {least}: met)"),
        Some(least) => format!("   (target {least}: MISSED)"),
        None => String::new(),
    }
}

fn bench(arguments: &Arguments) -> io::Result<()> {
    let works = arguments
        .places
        .iter()
        .map(|place| Work::prepare(place, arguments))
        .collect::<io::Result<Vec<_>>>()?;
    for what in &MEASURES {
        let rounds = measure(what, &works, arguments.rounds)?;
        print!("{}", describe(what, &arguments.places, &rounds));
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match bench(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leasefs-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
