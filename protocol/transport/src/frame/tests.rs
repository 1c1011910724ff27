use super::*;
use leasefs_protocol::control::ToServer;

fn stream() -> (Vec<(ToServer, Bytes)>, Vec<u8>) {
    let frames: Vec<(ToServer, Bytes)> = [0, 1, 5_000, 20_000, 1 << 20]
        .into_iter()
        .enumerate()
        .map(|(number, len)| {
            let message = ToServer::KeepAlive {
                number: number as u64,
            };
            (message, Bytes::from(vec![number as u8 + 1; len]))
        })
        .collect();
    let mut bytes = Vec::new();
    for (message, payload) in &frames {
        let frame = OutFrame::new(message, payload.clone()).expect("within bounds");
        bytes.extend_from_slice(&frame.header);
        bytes.extend_from_slice(&frame.payload);
    }
    (frames, bytes)
}

#[test]
fn frames_come_out_whole_however_the_stream_is_cut() {
    let (frames, bytes) = stream();
    for piece in [1, 7, 8, 9, 1200, 65_000, bytes.len()] {
        let mut assembler = Assembler::default();
        let mut found = Vec::new();
        for part in bytes.chunks(piece) {
            assembler.push(Bytes::copy_from_slice(part));
            while let Some(frame) = assembler.take::<ToServer>().expect("well-formed") {
                found.push(frame);
            }
        }
        assert_eq!(found, frames, "pieces of {piece}");
        assert!(assembler.is_between_frames());
    }
}

#[test]
fn lengths_over_their_bounds_are_refused_before_anything_is_kept() {
    let mut assembler = Assembler::default();
    assembler.push(Bytes::from_static(&[255; 8]));
    let refused = assembler.take::<ToServer>();
    assert!(matches!(refused, Err(CodecError::TooLong { .. })));
    assert_eq!(assembler.partial.capacity(), 0);
}

#[test]
fn a_large_payload_in_one_piece_is_shared_and_a_small_one_copied() {
    for (len, shared) in [(WORTH_SHARING, true), (WORTH_SHARING - 1, false)] {
        let payload = Bytes::from(vec![9; len]);
        let frame = OutFrame::new(&ToServer::Goodbye, payload).expect("frame");
        let datagram = Bytes::from([&frame.header[..], &frame.payload[..]].concat());
        let range = datagram.as_ptr_range();
        let mut assembler = Assembler::default();
        assembler.push(datagram.clone());
        let (_, payload) = assembler
            .take::<ToServer>()
            .expect("well-formed")
            .expect("whole");
        assert_eq!(range.contains(&payload.as_ptr()), shared);
    }
}
