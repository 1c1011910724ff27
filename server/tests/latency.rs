//! Time of one request at a time over loopback, and of many at once. Run by hand:
//! `cargo test --release -p fsserver --test latency -- --ignored --nocapture`

mod support;

use bytes::Bytes;
use leasefs_protocol::query::Fill;
use leasefs_protocol::{OpenId, Query, query};
use std::time::{Duration, Instant};
use support::House;
use support::client::{Ask, Client, Who, raw, write};

const ROUNDS: usize = 5_000;

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    println!("{what:<28} median {:>9.1?}  p99 {:>9.1?}", at(50), at(99));
}

async fn measure(client: &mut Client, what: &str, payload: &[u8], request: impl Into<Ask> + Clone) {
    let mut times = Vec::with_capacity(ROUNDS);
    for n in 0..ROUNDS {
        let begun = Instant::now();
        let (reply, _) = client.ask_with(request.clone(), payload).await;
        assert!(reply.result.is_ok(), "{reply:?}");
        if n >= ROUNDS / 10 {
            times.push(begun.elapsed());
        }
    }
    report(what, times);
}

async fn pipelined(client: &mut Client, what: &str, request: impl Into<Ask> + Clone) {
    const DEPTH: usize = 128;
    let total = ROUNDS * 8;
    let begun = Instant::now();
    let mut answered = 0;
    let mut sent = 0;
    while answered < total {
        while sent < total && sent - answered < DEPTH {
            let frame = client.frame(request.clone());
            client.lane.send(&frame, Bytes::new()).await.expect("sent");
            sent += 1;
        }
        client.reply().await;
        answered += 1;
    }
    let rate = total as f64 / begun.elapsed().as_secs_f64();
    println!("{what:<28} {rate:>9.0}/s");
}

fn read(open: OpenId, len: u32) -> Query {
    Query::Read(query::Read {
        open,
        offset: 0,
        len,
        fill: Fill::Pages,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, claims nothing"]
async fn latency_of_single_requests() {
    let house = House::new();
    std::fs::write(house.path("f"), vec![1; 4 << 20]).expect("a file");
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let dir = a.root();
    let (object, _) = a.lookup(dir, "f").await.expect("there");
    let open = a.open(object, libc::O_RDWR).await;
    let name = raw("f");
    let none = raw("none");
    measure(
        &mut a,
        "statfs",
        b"",
        Query::StatFs(query::StatFs { object }),
    )
    .await;
    measure(
        &mut a,
        "getattr",
        b"",
        Query::GetAttr(query::GetAttr { object }),
    )
    .await;
    measure(
        &mut a,
        "lookup",
        b"",
        Query::Lookup(query::Lookup { dir, name }),
    )
    .await;
    measure(
        &mut a,
        "lookup, no entry",
        b"",
        Query::Lookup(query::Lookup { dir, name: none }),
    )
    .await;
    measure(&mut a, "read 4 KiB", b"", read(open, 4096)).await;
    measure(&mut a, "read 128 KiB", b"", read(open, 128 << 10)).await;
    measure(&mut a, "read 1 MiB", b"", read(open, 1 << 20)).await;
    measure(&mut a, "write 4 KiB", &[2; 4096], write(open, 0)).await;
    measure(&mut a, "write 1 MiB", &[2; 1 << 20], write(open, 0)).await;
    pipelined(
        &mut a,
        "getattr, 128 at once",
        Query::GetAttr(query::GetAttr { object }),
    )
    .await;
    pipelined(&mut a, "read 4 KiB, 128 at once", read(open, 4096)).await;
    pipelined(&mut a, "read 128 KiB, 128 at once", read(open, 128 << 10)).await;
}
