//! What daemons tell Prometheus, and whom they don't listen to.

use leasefs_tests::mounted::{Binaries, Mount, MountOptions, World, WorldOptions, eventually};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);
const ASKED: &str = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

/// Something that can be asked by HTTP.
trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// All that comes back before the connection ends.
fn ask(mut stream: impl Stream, asked: &str) -> String {
    stream.write_all(asked.as_bytes()).expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer
}

fn page(answer: &str) -> Page {
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains("application/openmetrics-text"), "{head}");
    Page::parse(body)
}

fn told_at(socket: &Path) -> Page {
    page(&ask(UnixStream::connect(socket).expect("a socket"), ASKED))
}

/// A page in the OpenMetrics text format: each series and its value.
#[derive(Debug, Default)]
struct Page {
    series: BTreeMap<String, f64>,
    kinds: BTreeMap<String, String>,
}

impl Page {
    /// Refuses what isn't well formed.
    fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let lines = text.strip_suffix("# EOF\n").expect("an end");
        let mut family = String::new();
        let mut helped = BTreeSet::new();
        for line in lines.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, words) = help.split_once(' ').expect("words");
                assert!(words.ends_with('.'), "{line}");
                assert!(helped.insert(name.to_owned()), "{name} stands twice");
            } else if let Some(of) = line.strip_prefix("# TYPE ") {
                let (name, kind) = of.split_once(' ').expect("a kind");
                assert!(helped.contains(name), "{name} has no help");
                page.kinds.insert(name.to_owned(), kind.to_owned());
                family = name.to_owned();
            } else {
                let (series, value) = line.rsplit_once(' ').expect("a value");
                let name = series.split('{').next().expect("a name");
                let suffixes: &[&str] = match page.kinds[&family].as_str() {
                    "counter" => &["_total"],
                    "histogram" => &["_bucket", "_count", "_sum"],
                    _ => &[""],
                };
                let suffix = name.strip_prefix(&family).expect(line);
                assert!(suffixes.contains(&suffix), "{line}");
                let value = value.parse().expect(line);
                let before = page.series.insert(series.to_owned(), value);
                assert!(before.is_none(), "{series} stands twice");
            }
        }
        page.histograms_add_up();
        page
    }

    fn histograms_add_up(&self) {
        for (series, count) in &self.series {
            let Some((name, labels)) = series.split_once("_count") else {
                continue;
            };
            let labels = labels.trim_matches(['{', '}']);
            let all = |rest: &str| match labels {
                "" => rest == "le=\"+Inf\"",
                labels => rest == format!("le=\"+Inf\",{labels}"),
            };
            let buckets = self.series.iter().filter(|(series, _)| {
                let rest = series.strip_prefix(&format!("{name}_bucket{{"));
                rest.is_some_and(|rest| all(rest.trim_end_matches('}')))
            });
            let found: Vec<f64> = buckets.map(|(_, count)| *count).collect();
            assert_eq!(found, [*count], "{series}");
        }
    }

    fn get(&self, series: &str) -> f64 {
        let value = self.series.get(series);
        *value.unwrap_or_else(|| panic!("no {series} in {:#?}", self.series))
    }

    /// Of a family with one label: by its value.
    fn by(&self, name: &str, label: &str) -> BTreeMap<String, u64> {
        let head = format!("{name}{{{label}=\"");
        let of = |(series, value): (&String, &f64)| {
            let kind = series.strip_prefix(&head)?.strip_suffix("\"}")?;
            Some((kind.to_owned(), *value as u64))
        };
        self.series.iter().filter_map(of).collect()
    }

    /// What only grows.
    fn counted(&self) -> impl Iterator<Item = (&String, f64)> {
        let counted = |series: &str| {
            let name = series.split('{').next().unwrap_or_default();
            ["_total", "_count", "_bucket"]
                .iter()
                .any(|end| name.ends_with(end))
        };
        let all = self.series.iter().map(|(series, value)| (series, *value));
        all.filter(move |(series, _)| counted(series))
    }
}

fn requests(status: &Value) -> BTreeMap<String, u64> {
    let all = status["requests"].as_object().expect("requests");
    all.iter()
        .map(|(kind, count)| (kind.clone(), count.as_u64().expect("a number")))
        .collect()
}

/// A world in which each daemon has a socket for its metrics in one folder.
struct Told {
    world: World,
    folder: PathBuf,
}

impl Told {
    fn start(name: &str, mounts: usize) -> Self {
        let folder = std::env::temp_dir().join(format!("leasefs-{name}-{}", std::process::id()));
        fs::create_dir(&folder).expect("a folder");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o750)).expect("chmod");
        let mut options = WorldOptions::mounts(0);
        options.server.options = at(&folder.join("server"));
        let mut world = World::start(name, &options);
        for index in 0..mounts {
            let ticket = world.server.ticket_for(world.server.address);
            let name = format!("mount{index}");
            let options = MountOptions {
                options: at(&folder.join(&name)),
                ..MountOptions::default()
            };
            let mount = Mount::start(&world.sandbox, &name, &ticket, &options);
            world.mounts.push(mount);
        }
        Self { world, folder }
    }

    fn page(&self, of: &str) -> Page {
        told_at(&self.folder.join(of))
    }

    fn server_status(&self) -> Value {
        let status = self.world.server.command(&["status", "--json"]);
        serde_json::from_str(&status).expect("JSON")
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // Sockets of daemons that were killed are left to those that come after them.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn at(socket: &Path) -> Vec<String> {
    vec!["--metrics".to_owned(), format!("unix:{}", socket.display())]
}

/// Each mount writes what the other has cached and reads what it writes.
fn work(told: &Told) {
    let files = [0, 1].map(|mount| told.world.mount(mount).path("file"));
    for round in 0..5 {
        for (writer, reader) in [(0, 1), (1, 0)] {
            let text = format!("{round} {writer}");
            fs::write(&files[writer], &text).expect("written");
            assert_eq!(fs::read_to_string(&files[reader]).expect("read"), text);
        }
    }
    fs::File::open(&files[0])
        .and_then(|file| file.sync_all())
        .expect("synced");
}

#[test]
fn both_sides_tell_well_formed_metrics_that_grow_with_work_and_agree_with_status() {
    let told = Told::start("metrics", 2);
    let pages = || ["server", "mount0", "mount1"].map(|of| told.page(of));
    let approved = |page: &Page| page.get("leasefs_client_recall_seconds_count");
    let before = pages();
    work(&told);
    // What was told half a second ago may be told again; and closes come after the work.
    let agree = || {
        std::thread::sleep(Duration::from_millis(600));
        let of_server = requests(&told.server_status());
        let of_mount = requests(&told.world.mount(0).status()["mounts"][0]);
        let [server, mount, other] = pages();
        let sent = mount.by("leasefs_client_requests_total", "kind");
        let answered = mount.by("leasefs_client_request_seconds_count", "kind");
        let served = server.by("leasefs_server_request_seconds_count", "kind");
        let of_both = server.get("leasefs_server_recall_seconds_count");
        let same = sent == of_mount
            && answered == of_mount
            && served == of_server
            && of_both == approved(&mount) + approved(&other);
        same.then_some([server, mount, other])
    };
    let after = eventually("the metrics and status to agree", LIMIT, agree, || {
        format!("{:#?}", told.page("server"))
    });
    for (before, after) in before.iter().zip(&after) {
        for (series, value) in before.counted() {
            assert!(after.get(series) >= value, "{series} went back");
        }
    }
    let [server, mount, other] = after;
    assert!(server.get("leasefs_server_request_seconds_count{kind=\"write\"}") >= 10.0);
    assert!(server.get("leasefs_server_journal_write_seconds_count") >= 10.0);
    assert!(server.get("leasefs_server_sync_seconds_count") >= 1.0);
    assert_eq!(
        server.get("leasefs_server_sessions{state=\"connected\"}"),
        2.0
    );
    assert!(server.get("leasefs_server_leases") >= 2.0);
    assert_eq!(server.get("leasefs_server_violations_total"), 0.0);
    assert!(mount.get("leasefs_client_cache_answers_total{kind=\"getattr\"}") >= 1.0);
    assert_eq!(mount.get("leasefs_client_state{state=\"connected\"}"), 1.0);
    assert!(mount.get("leasefs_client_congestion_window_bytes") > 0.0);
    assert!(approved(&mount) >= 4.0 && approved(&other) >= 4.0);
    assert!(server.get("leasefs_server_recalls_total") >= 8.0);
}

#[test]
fn a_client_that_is_cut_off_is_seen_by_the_server_and_tells_it_itself() {
    let mut told = Told::start("metrics-cut", 1);
    fs::write(told.world.mount(0).path("f"), "x").expect("written");
    let gone = |page: &Page, series: &str, value| (page.get(series) == value).then_some(());
    told.world.server.daemon.kill();
    let disconnected = || {
        let page = told.page("mount0");
        gone(&page, "leasefs_client_state{state=\"connected\"}", 0.0)
    };
    eventually("the client to notice", LIMIT, disconnected, String::new);
    told.world.server.start_again();
    let back = || gone(&told.page("mount0"), "leasefs_client_reconnects_total", 1.0);
    eventually("the client to be back", LIMIT, back, String::new);
    told.world.mounts[0].daemon.kill();
    let away = "leasefs_server_sessions{state=\"away\"}";
    let noticed = || gone(&told.page("server"), away, 1.0);
    eventually("the server to notice", LIMIT, noticed, String::new);
    told.world.mount_again(0);
}

fn refusal(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_address_that_other_machines_may_reach_is_refused_with_what_to_do() {
    let dir = std::env::temp_dir();
    let dir = dir.to_str().expect("a name");
    let binaries = Binaries::get();
    for address in ["0.0.0.0:9464", "[::]:9464", "192.0.2.1:9464"] {
        let serve = ["serve", dir, "--metrics", address];
        let mount = ["mount", "nowhere:/", dir, "--metrics", address];
        for said in [
            refusal(&binaries.server, &serve),
            refusal(&binaries.client, &mount),
        ] {
            assert!(
                said.contains(address) && said.contains("ssh tunnel"),
                "{said}"
            );
        }
    }
}

#[test]
fn a_socket_is_for_the_group_and_goes_with_its_daemon_and_a_killed_ones_is_taken_over() {
    let mut told = Told::start("metrics-socket", 1);
    let socket = told.folder.join("server");
    let found = fs::symlink_metadata(&socket).expect("a socket");
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o660);
    told.world.server.daemon.kill();
    assert!(UnixStream::connect(&socket).is_err() && socket.exists());
    told.world.server.start_again();
    told.page("server");
    let of_mount = told.folder.join("mount0");
    assert!(of_mount.exists());
    let mut mount = told.world.mounts.pop().expect("a mount");
    let (output, _) = mount.umount(&[], LIMIT);
    assert!(output.status.success(), "{output:?}");
    mount.daemon.ends_within(LIMIT);
    assert!(!of_mount.exists(), "the socket of a daemon that has ended");
    assert!(told.world.server.daemon.end_or_kill(LIMIT));
    assert!(!socket.exists(), "the socket of a server that has ended");
}

#[test]
fn a_socket_in_a_folder_that_others_may_write_is_refused_and_so_is_one_in_use() {
    let told = Told::start("metrics-folder", 1);
    let ticket = told.world.server.ticket_for(told.world.server.address);
    let again = told.world.sandbox.folder("again");
    let state = told.world.sandbox.root().join("again-state");
    let refused = |socket: &Path| {
        let mut command = Command::new(&Binaries::get().client);
        command.arg("mount").arg(&ticket).arg(&again);
        command.arg("--state").arg(&state).args(at(socket));
        let output = command.output().expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = refused(&told.folder.join("mount0"));
    assert!(said.contains("is in use: choose another"), "{said}");
    let open = told.world.sandbox.folder("open");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("chmod");
    let said = refused(&open.join("m"));
    assert!(said.contains("may be written by other users"), "{said}");
}

/// A port that nobody has at the moment.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its number").port()
}

#[test]
fn who_asks_badly_or_slowly_is_cut_off_and_disturbs_nobody() {
    let port = free_port();
    let mut options = WorldOptions::mounts(1);
    options.server.options = vec!["--metrics".to_owned(), format!("127.0.0.1:{port}")];
    let world = World::start("metrics-hostile", &options);
    let connect = || {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
        stream
    };
    let begun = Instant::now();
    let mut slow: Vec<TcpStream> = (0..12).map(|_| connect()).collect();
    for stream in &mut slow {
        stream.write_all(b"GET /metrics HT").expect("sent");
    }
    let mut endless = connect();
    let huge = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n", "x".repeat(1 << 20));
    // It may hang up before it has read all that.
    let _ = endless.write_all(huge.as_bytes());
    let mut said = Vec::new();
    let _ = endless.read_to_end(&mut said);
    assert!(!String::from_utf8_lossy(&said).contains(" 200 "));
    assert!(ask(connect(), "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
    assert!(ask(connect(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 404 "));
    let put = "PUT /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx";
    assert!(ask(connect(), put).starts_with("HTTP/1.1 405 "));
    page(&ask(connect(), ASKED));
    fs::write(world.mount(0).path("f"), "x").expect("the mount works");
    assert!(begun.elapsed() < Duration::from_secs(8), "all that waited");
    // Where there are too many the oldest give way.
    let more: Vec<TcpStream> = (0..40).map(|_| connect()).collect();
    page(&ask(connect(), ASKED));
    drop(more);
    for mut stream in slow {
        // The end of the connection, or its reset.
        let ended = stream.read(&mut [0; 512]);
        assert!(ended.is_err() || ended.is_ok_and(|read| read == 0));
    }
    assert!(begun.elapsed() < LIMIT, "cut off in time");
    page(&ask(connect(), ASKED));
}

#[test]
fn nothing_is_told_unless_it_is_asked_for() {
    let world = World::start("metrics-off", &WorldOptions::mounts(1));
    for pid in [world.server.daemon.pid(), world.mount(0).daemon.pid()] {
        let listening = Command::new("ss").args(["-Hltnp"]).output();
        let listening = listening.expect("ss runs").stdout;
        let listening = String::from_utf8_lossy(&listening).into_owned();
        assert!(!listening.contains(&format!("pid={pid},")), "{listening}");
    }
}
