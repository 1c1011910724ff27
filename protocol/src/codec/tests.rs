//! Round trips of every message, golden bytes, and input that is no message.

use super::*;
use crate::control::{Hello, Push, ToClient, ToServer, Welcome};
use crate::request::{Caller, Change, Fill, Reply, Request, RequestFrame, Response};
use crate::*;
use proptest::prelude::*;
use std::fmt::Debug;

fn header(frame: &[u8]) -> &[u8] {
    &frame[PREFIX..]
}

fn round_trip<M: Serialize + DeserializeOwned + PartialEq + Debug>(
    message: &M,
) -> Result<(), TestCaseError> {
    let frame = encode(message, 7).expect("within the limits");
    let prefix: [u8; PREFIX] = frame[..PREFIX].try_into().expect("eight bytes");
    let expected = FramePrefix {
        header: frame.len() - PREFIX,
        payload: 7,
    };
    prop_assert_eq!(FramePrefix::parse(prefix), Ok(expected));
    prop_assert_eq!(&decode::<M>(header(&frame)).expect("a message"), message);
    let mut longer = header(&frame).to_vec();
    longer.push(0);
    prop_assert_eq!(decode::<M>(&longer), Err(CodecError::LeftOver(1)));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_request_reads_back(message: RequestFrame) { round_trip(&message)?; }

    #[test]
    fn every_reply_reads_back(message: Reply) { round_trip(&message)?; }

    #[test]
    fn every_message_to_the_server_reads_back(message: ToServer) { round_trip(&message)?; }

    #[test]
    fn every_message_to_the_client_reads_back(message: ToClient) { round_trip(&message)?; }

    #[test]
    fn every_push_reads_back(message: Push) { round_trip(&message)?; }

    #[test]
    fn random_bytes_are_refused_or_are_a_message(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        if let Ok(message) = decode::<RequestFrame>(&bytes) {
            round_trip(&message)?;
        }
        let _ = decode::<Reply>(&bytes);
        let _ = decode::<ToServer>(&bytes);
        let _ = decode::<ToClient>(&bytes);
        let _ = decode::<Push>(&bytes);
    }

    #[test]
    fn a_truncated_message_is_refused(message: RequestFrame, cut in any::<prop::sample::Index>()) {
        let frame = encode(&message, 0).expect("within the limits");
        let whole = header(&frame);
        let cut = cut.index(whole.len());
        prop_assert!(decode::<RequestFrame>(&whole[..cut]).is_err());
    }
}

#[test]
fn lengths_over_their_bounds_are_refused_before_anything_is_allocated() {
    let mut prefix = [0; PREFIX];
    prefix[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(
        FramePrefix::parse(prefix),
        Err(CodecError::TooLong { what: "header", .. })
    ));
    // A sequence that claims 2^60 elements in a header of ten bytes.
    let mut claim = vec![253];
    claim.extend((1_u64 << 60).to_le_bytes());
    assert!(decode::<Vec<u64>>(&claim).is_err());
}

#[test]
fn the_encoder_refuses_what_the_decoder_would() {
    let too_big = vec![7_u8; MAX_HEADER];
    assert!(matches!(
        encode(&too_big, 0),
        Err(CodecError::TooLong { what: "header", .. })
    ));
    assert!(matches!(
        encode(&0_u8, MAX_PAYLOAD + 1),
        Err(CodecError::TooLong {
            what: "payload",
            ..
        })
    ));
}

fn handle() -> Handle {
    Handle::new(&[0xab, 0xcd]).expect("two bytes")
}

fn attr() -> Attr {
    Attr {
        ino: 12,
        kind: FileKind::File,
        mode: 0o644,
        nlink: 1,
        uid: 1000,
        gid: 1000,
        rdev: (0, 0),
        size: 4096,
        blocks: 8,
        blksize: 4096,
        atime: Timestamp::default(),
        mtime: Timestamp {
            seconds: -1,
            nanos: 5,
        },
        ctime: Timestamp {
            seconds: 300,
            nanos: 6,
        },
    }
}

fn hex<M: Serialize>(message: &M) -> String {
    let frame = encode(message, 0).expect("within the limits");
    header(&frame).iter().map(|b| format!("{b:02x}")).collect()
}

/// One of each kind that goes over the wire; a change of these bytes is a new protocol version.
#[test]
fn golden_bytes_pin_the_wire_format() {
    let frame = RequestFrame {
        id: RequestId(1),
        low_water: Seq(2),
        caller: Caller {
            uid: 1000,
            gid: 100,
            groups: vec![4, 27],
        },
        change: Some(Change {
            seq: Seq(3),
            after: vec![Seq(2)],
            resent: false,
            dropped: vec![handle()],
        }),
        request: Request::Unlink {
            dir: handle(),
            name: RawName(b"n".to_vec()),
        },
    };
    let read = Request::Read {
        open: OpenId(9),
        offset: 65536,
        len: 4096,
        fill: Fill::Pages,
    };
    let reply = Reply {
        id: RequestId(1),
        renews: true,
        stamp: Stamp(5),
        grants: vec![Grant {
            object: handle(),
            parts: Parts::ATTRS | Parts::DATA,
            mode: Mode::Read,
            stamp: Stamp(5),
        }],
        touched: vec![Touched {
            object: handle(),
            attr: attr(),
        }],
        result: Err(Refusal::Host(2)),
    };
    let hello = ToServer::Hello(Hello {
        version: 1,
        features: 0,
        session: SessionId([1; 16]),
        ticket: None,
        name: "host:/mnt".into(),
        subdir: vec![RawName(b"d".to_vec())],
        drift_ppm: 1000,
        last_process: Some(BootId([2; 16])),
    });
    let welcome = ToClient::Welcome(Welcome {
        features: 0,
        term_ms: 10_000,
        drift_ppm: 1000,
        process: BootId([3; 16]),
        host: BootId([4; 16]),
        standing: control::Standing::Reclaim,
        renews: false,
        root: handle(),
        root_attr: attr(),
        read_only: false,
        identity: control::IdentityPolicy::Trust,
    });
    let recall = Push::Recall(Recall {
        id: RecallId(8),
        stamp: Stamp(6),
        scope: Scope::Object {
            object: handle(),
            parts: Parts::ATTRS | Parts::LISTING,
            names: vec![RawName(b"n".to_vec())],
        },
    });
    let found = Response::Object {
        handle: handle(),
        attr: attr(),
    };
    let actual = [
        ("request", hex(&frame)),
        ("read", hex(&read)),
        ("reply", hex(&reply)),
        ("hello", hex(&hello)),
        ("welcome", hex(&welcome)),
        ("recall", hex(&recall)),
        ("object", hex(&found)),
    ]
    .map(|(name, bytes)| format!("{name} {bytes}\n"))
    .concat();
    assert_eq!(actual, include_str!("golden.txt"));
}
