//! Round trips of every message, and input that is no message.

use super::*;
use crate::control::{Push, ToClient, ToServer};
use crate::{Reply, RequestFrame};
use proptest::prelude::*;
use std::fmt::Debug;

mod golden;

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
