//! Connections over loopback, with real sockets.

use bytes::Bytes;
use leasefs_protocol::KeyHash;
use leasefs_protocol::codec::CodecError;
use leasefs_protocol::control::{ToClient, ToServer};
use leasefs_transport::{
    CloseCode, Connection, EndpointSecret, FrameError, FrameReader, FrameWriter, Identity, Lost,
    OutFrame, Server, TransportError, connect,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

struct Pair {
    server: Server,
    client: Connection,
    served: Connection,
    identity: Identity,
}

async fn pair() -> Result<Pair> {
    let identity = Identity::generate()?;
    let server = Server::bind(ANY, &identity, &EndpointSecret::generate()?)?;
    let guest = Identity::generate()?;
    let (client, served) = tokio::join!(
        connect(server.local_addr(), &guest, identity.key_hash()),
        accept(&server)
    );
    let served = served?;
    assert_eq!(served.peer(), guest.key_hash());
    Ok(Pair {
        client: client?,
        served,
        server,
        identity,
    })
}

async fn accept(server: &Server) -> Result<Connection> {
    let incoming = server.accept().await.ok_or("closed")?;
    let connection = incoming.handshake().await?;
    connection.let_in();
    Ok(connection)
}

/// A stream in both directions: (client's ends, server's ends).
async fn stream(pair: &Pair) -> Result<((FrameWriter, FrameReader), (FrameWriter, FrameReader))> {
    let (mut writer, reader) = pair.client.open().await?;
    writer.send(&ToServer::ReclaimDone, Bytes::new()).await?;
    let (_, theirs, mut their_reader) = pair.served.accept().await?;
    assert_eq!(
        their_reader.next::<ToServer>().await?,
        Some((ToServer::ReclaimDone, Bytes::new()))
    );
    Ok(((writer, reader), (theirs, their_reader)))
}

#[tokio::test]
async fn both_sides_learn_each_others_key_and_frames_go_both_ways() -> Result<()> {
    let pair = pair().await?;
    assert_eq!(pair.client.peer(), pair.identity.key_hash());
    let ((mut ours, mut reader), (mut theirs, mut their_reader)) = stream(&pair).await?;
    let payload = Bytes::from(vec![7; 1024 * 1024]);
    ours.send(&ToServer::Goodbye, payload.clone()).await?;
    let received = their_reader.next::<ToServer>().await?;
    assert_eq!(received, Some((ToServer::Goodbye, payload.clone())));
    theirs.send(&ToClient::Farewell, payload.clone()).await?;
    theirs.finish();
    assert_eq!(
        reader.next::<ToClient>().await?,
        Some((ToClient::Farewell, payload))
    );
    assert_eq!(reader.next::<ToClient>().await?, None);
    Ok(())
}

#[tokio::test]
async fn a_server_with_another_key_is_refused_by_name_and_never_gets_a_connection() -> Result<()> {
    let identity = Identity::generate()?;
    let server = Server::bind(ANY, &identity, &EndpointSecret::generate()?)?;
    let expected = KeyHash([1; 32]);
    let guest = Identity::generate()?;
    let (client, served) = tokio::join!(
        connect(server.local_addr(), &guest, expected),
        accept(&server)
    );
    match client {
        Err(TransportError::WrongServer { expected: e, found }) => {
            assert_eq!((e, found), (expected, identity.key_hash()))
        }
        other => panic!("{other:?}"),
    }
    assert!(served.is_err(), "the handshake must not complete");
    Ok(())
}

#[tokio::test]
async fn garbage_is_an_error_that_names_what_was_found() -> Result<()> {
    type Expected = fn(&CodecError) -> bool;
    let garbage: [(&[u8], Expected); 3] = [
        (&[255; 16], |e| matches!(e, CodecError::TooLong { .. })),
        (&[3, 0, 0, 0, 0, 0, 0, 0, 99, 99, 99], |e| {
            matches!(e, CodecError::Malformed(_))
        }),
        (&[2, 0, 0, 0, 0, 0, 0, 0, 7, 7], |e| {
            matches!(e, CodecError::LeftOver(1))
        }),
    ];
    for (bytes, expected) in garbage {
        let pair = pair().await?;
        let ((mut ours, _reader), (_theirs, mut their_reader)) = stream(&pair).await?;
        ours.send_frames([OutFrame::raw(Bytes::from_static(bytes))])
            .await?;
        match their_reader.next::<ToServer>().await {
            Err(FrameError::Codec(error)) => assert!(expected(&error), "{error}"),
            other => panic!("{other:?}"),
        }
        pair.served.close(CloseCode::Protocol, "garbage");
        assert_eq!(
            pair.client.closed().await,
            Lost::Closed {
                code: Some(CloseCode::Protocol),
                reason: "garbage".into()
            }
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_stream_that_ends_within_a_frame_is_no_clean_end() -> Result<()> {
    let pair = pair().await?;
    let ((mut ours, _reader), (_theirs, mut their_reader)) = stream(&pair).await?;
    ours.send_frames([OutFrame::raw(Bytes::from_static(&[1, 0, 0]))])
        .await?;
    ours.finish();
    assert_eq!(
        their_reader.next::<ToServer>().await,
        Err(FrameError::Truncated)
    );
    Ok(())
}

#[tokio::test]
async fn a_client_hears_within_two_seconds_that_its_server_has_restarted() -> Result<()> {
    let identity = Identity::generate()?;
    let secret = EndpointSecret::generate()?;
    // A runtime of its own: shutting it down is as silent as a killed process.
    let life = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let (told, address) = tokio::sync::oneshot::channel();
    let (first_identity, first_secret) = (identity.clone(), secret.clone());
    life.spawn(async move {
        let server = Server::bind(ANY, &first_identity, &first_secret).expect("bind");
        told.send(server.local_addr()).expect("told");
        let _held = accept(&server).await;
        std::future::pending::<()>().await;
    });
    let address = address.await?;
    let client = connect(address, &Identity::generate()?, identity.key_hash()).await?;
    let (mut writer, _reader) = client.open().await?;
    writer.send(&ToServer::ReclaimDone, Bytes::new()).await?;
    // Killed without a word: the driver that would say goodbye is gone first.
    tokio::task::spawn_blocking(move || life.shutdown_timeout(Duration::ZERO)).await?;
    let mut attempts = 0;
    let _server = loop {
        match Server::bind(address, &identity, &secret) {
            Ok(server) => break server,
            Err(error) if attempts == 100 => return Err(error.into()),
            Err(_) => attempts += 1,
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let start = Instant::now();
    let keep_alive = async {
        loop {
            let message = ToServer::KeepAlive { number: 1 };
            if writer.send(&message, Bytes::new()).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let lost = async { client.closed().await };
    let (lost, ()) = tokio::time::timeout(Duration::from_secs(2), async {
        tokio::join!(lost, keep_alive)
    })
    .await?;
    assert_eq!(lost, Lost::Restarted, "after {:?}", start.elapsed());
    Ok(())
}

#[tokio::test]
async fn an_outbox_delivers_everything_in_order_and_then_ends_the_stream() -> Result<()> {
    let pair = pair().await?;
    let ((ours, _reader), (_theirs, mut their_reader)) = stream(&pair).await?;
    let outbox = ours.into_outbox();
    let count = 2_000;
    let sender = tokio::spawn(async move {
        for number in 0..count {
            let payload = Bytes::from(vec![number as u8; (number % 97) as usize * 100]);
            let frame = OutFrame::new(&ToServer::KeepAlive { number }, payload).expect("frame");
            outbox.send(frame).await.expect("open");
        }
    });
    for number in 0..count {
        let (message, payload) = their_reader.next::<ToServer>().await?.ok_or("end")?;
        assert_eq!(message, ToServer::KeepAlive { number });
        assert_eq!(payload.len(), (number % 97) as usize * 100);
        assert!(payload.iter().all(|byte| *byte == number as u8));
    }
    assert_eq!(their_reader.next::<ToServer>().await?, None);
    sender.await?;
    Ok(())
}

/// The runtime of the client is this thread, which does nothing for it meanwhile.
#[tokio::test]
async fn what_is_sent_promptly_goes_out_without_the_runtimes_threads() -> Result<()> {
    let identity = Identity::generate()?;
    let key = identity.key_hash();
    let (told, address) = std::sync::mpsc::channel();
    let (heard, came) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let serve = async move {
            let secret = EndpointSecret::generate().expect("a secret");
            let server = Server::bind(ANY, &identity, &secret).expect("bind");
            told.send(server.local_addr()).expect("the test waits");
            let held = accept(&server).await.expect("a client");
            let (_, _writer, mut reader) = held.accept().await.expect("a stream");
            while let Ok(Some((message, _))) = reader.next::<ToServer>().await {
                heard.send(message).expect("the test waits");
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().expect("a runtime");
        runtime.block_on(serve);
    });
    let client = connect(address.recv()?, &Identity::generate()?, key).await?;
    let (writer, _reader) = client.open().await?;
    let outbox = writer.into_outbox();
    let first = OutFrame::new(&ToServer::KeepAlive { number: 0 }, Bytes::new())?;
    outbox.send(first).await?;
    // Until the outbox has begun and the handshake is done with.
    tokio::time::sleep(Duration::from_millis(200)).await;
    for number in 1..10 {
        let message = ToServer::KeepAlive { number };
        let frame = OutFrame::new(&message, Bytes::new())?;
        leasefs_transport::promptly(|| outbox.push(frame))?;
        let last = std::iter::from_fn(|| came.recv_timeout(Duration::from_secs(10)).ok());
        assert!({ last }.any(|came| came == message), "{number}");
    }
    Ok(())
}

/// A link so slow that nothing moves: nobody reads the bulk lanes.
#[tokio::test]
async fn a_control_message_waits_behind_no_bulk_data() -> Result<()> {
    let pair = pair().await?;
    let ((mut control, _), (_, mut heard)) = stream(&pair).await?;
    let mut lanes = Vec::new();
    for _ in 0..4 {
        lanes.push(stream(&pair).await?);
    }
    // The first lane is for what is small.
    let bulk = lanes.split_off(1).into_iter();
    let ((writers, _readers), _unread): ((Vec<_>, Vec<_>), Vec<_>) = bulk.unzip();
    let boxes: Vec<_> = writers.into_iter().map(FrameWriter::into_outbox).collect();
    let payload = Bytes::from(vec![7; 1024 * 1024]);
    for outbox in boxes.iter().cycle().take(24) {
        outbox.push(OutFrame::new(&ToServer::Goodbye, payload.clone())?)?;
    }
    // As much as may be is under way.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let keep_alive = ToServer::KeepAlive { number: 1 };
    let sent = control.send(&keep_alive, Bytes::new());
    tokio::time::timeout(Duration::from_secs(5), sent).await??;
    let came = tokio::time::timeout(Duration::from_secs(5), heard.next::<ToServer>());
    assert_eq!(came.await??, Some((keep_alive, Bytes::new())));
    Ok(())
}

#[tokio::test]
async fn closing_the_server_tells_its_clients() -> Result<()> {
    let pair = pair().await?;
    pair.server.close(CloseCode::ShuttingDown, "later");
    assert_eq!(
        pair.client.closed().await,
        Lost::Closed {
            code: Some(CloseCode::ShuttingDown),
            reason: "later".into()
        }
    );
    assert!(pair.server.accept().await.is_none());
    Ok(())
}

#[tokio::test]
async fn the_push_stream_carries_frames_of_the_server() -> Result<()> {
    let pair = pair().await?;
    let mut push = pair.served.open_push().await?;
    push.send(&ToClient::Farewell, Bytes::new()).await?;
    let mut reader = pair.client.accept_push().await?;
    assert_eq!(
        reader.next::<ToClient>().await?,
        Some((ToClient::Farewell, Bytes::new()))
    );
    Ok(())
}

/// Not a test of correctness: `cargo test --release -p leasefs-transport -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn measure_round_trips_and_throughput() -> Result<()> {
    let pair = pair().await?;
    let ((mut ours, mut reader), (theirs, mut their_reader)) = stream(&pair).await?;
    let theirs = theirs.into_outbox();
    let echo = tokio::spawn(async move {
        while let Ok(Some((message, payload))) = their_reader.next::<ToServer>().await {
            let len = match message {
                ToServer::KeepAlive { number } => number as usize,
                _ => 0,
            };
            let answer = Bytes::from(vec![0; len]);
            let frame = OutFrame::new(&ToClient::Farewell, answer).expect("frame");
            drop(payload);
            if theirs.send(frame).await.is_err() {
                break;
            }
        }
    });
    let rounds: u32 = 20_000;
    let start = Instant::now();
    for _ in 0..rounds {
        ours.send(&ToServer::Goodbye, Bytes::new()).await?;
        reader.next::<ToClient>().await?;
    }
    println!("round trip {:?}", start.elapsed() / rounds);
    let outbox = ours.into_outbox();
    let start = Instant::now();
    let reads = 4096_u64;
    for _ in 0..reads {
        let message = ToServer::KeepAlive { number: 1 << 20 };
        outbox.push(OutFrame::new(&message, Bytes::new())?)?;
    }
    let mut bytes = 0;
    for _ in 0..reads {
        bytes += reader.next::<ToClient>().await?.ok_or("end")?.1.len();
    }
    let rate = bytes as f64 / start.elapsed().as_secs_f64() / f64::from(1 << 30);
    println!("server to client {rate:.2} GiB/s");
    let start = Instant::now();
    let block = Bytes::from(vec![1; 1 << 20]);
    for _ in 0..reads {
        let frame = OutFrame::new(&ToServer::Goodbye, block.clone())?;
        outbox.send(frame).await?;
    }
    for _ in 0..reads {
        reader.next::<ToClient>().await?;
    }
    let rate = bytes as f64 / start.elapsed().as_secs_f64() / f64::from(1 << 30);
    println!("client to server {rate:.2} GiB/s");
    let small = 200_000;
    let start = Instant::now();
    let reader = tokio::spawn(async move {
        for _ in 0..small {
            reader.next::<ToClient>().await.expect("frame");
        }
    });
    for _ in 0..small {
        outbox
            .send(OutFrame::new(&ToServer::Goodbye, Bytes::new())?)
            .await?;
    }
    reader.await?;
    let rate = f64::from(small) / start.elapsed().as_secs_f64();
    println!("pipelined small requests {rate:.0}/s");
    echo.abort();
    Ok(())
}

#[test]
fn identities_are_made_once_kept_private_and_refused_if_others_can_read_them() -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let dir = std::env::temp_dir().join(format!("leasefs-identity-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let path = Arc::new(dir.join("key"));
    let makers: Vec<_> = (0..8)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || Identity::load_or_create(&path).map(|id| id.key_hash()))
        })
        .collect();
    let mut hashes = Vec::new();
    for maker in makers {
        hashes.push(maker.join().map_err(|_| "panicked")??);
    }
    hashes.dedup();
    assert_eq!(hashes.len(), 1, "all get the same key");
    assert_eq!(
        std::fs::metadata(&*path)?.permissions().mode() & 0o777,
        0o600
    );
    std::fs::set_permissions(&*path, std::fs::Permissions::from_mode(0o640))?;
    let refused = Identity::load(&path).err().ok_or("must be refused")?;
    assert!(refused.to_string().contains("640"), "{refused}");
    std::fs::remove_dir_all(dir)?;
    Ok(())
}
