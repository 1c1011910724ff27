//! The frame assembler: streams of arbitrary bytes and of almost well-formed frames, cut anywhere.

use crate::memory;
use bytes::Bytes;
use leasefs_protocol::control::{Push, ToClient, ToServer};
use leasefs_protocol::limits::{MAX_HEADER, MAX_PAYLOAD};
use leasefs_protocol::{Reply, RequestFrame};
use leasefs_transport::Assembler;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Longest payload that is made up for a frame.
const PAYLOAD: usize = 40_000;
/// What the decoder may take (see [`crate::messages`]) of the longest header of an input, and the
/// assembler for the frame it waits for.
const FRAME: usize = (4 << 20) + MAX_HEADER + MAX_PAYLOAD;

/// One byte for the kind of the messages, one for how the stream is cut, the rest for the stream.
pub fn run(input: &[u8]) {
    let [kind, cut, rest @ ..] = input else {
        return;
    };
    let stream = match kind & 0x80 {
        0 => rest.to_vec(),
        _ => built(rest),
    };
    match kind % 5 {
        0 => assembler::<ToServer>(&stream, *cut),
        1 => assembler::<ToClient>(&stream, *cut),
        2 => assembler::<Push>(&stream, *cut),
        3 => assembler::<RequestFrame>(&stream, *cut),
        _ => assembler::<Reply>(&stream, *cut),
    }
}

/// Frames of headers as given, with payloads made up: of each its header's length, its payload's
/// (in units of 16 bytes), and whether it lies about the latter.
fn built(mut rest: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    while let [header, low, high, lie, behind @ ..] = rest {
        let (header, behind) = behind.split_at(behind.len().min(usize::from(*header)));
        let payload = usize::from(u16::from_le_bytes([*low, *high])) * 16 % PAYLOAD;
        let told = payload + usize::from(lie.saturating_sub(0xf0));
        stream.extend_from_slice(&(header.len() as u32).to_le_bytes());
        stream.extend_from_slice(&(told as u32).to_le_bytes());
        stream.extend_from_slice(header);
        stream.resize(stream.len() + payload, *lie);
        rest = behind;
    }
    stream
}

/// What a stream comes to: its frames, and whether it may end there, or goes on, or is broken.
type Outcome<M> = (Vec<(M, Bytes)>, Result<bool, String>);

/// However a stream is cut, the same comes out, and memory holds little more than the stream.
fn assembler<M: DeserializeOwned + Debug + PartialEq>(stream: &[u8], cut: u8) {
    let (pieces, peak) = memory::peak(|| assembled::<M>(pieces(stream, cut)));
    // The stream, what is gathered of it, and the frames that came out.
    let limit = FRAME + 300 * stream.len();
    assert!(peak <= limit, "{} bytes took {peak}", stream.len());
    assert_eq!(pieces, assembled::<M>([stream]));
}

fn assembled<'a, M: DeserializeOwned>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome<M> {
    let mut assembler = Assembler::default();
    let mut frames = Vec::new();
    for piece in pieces {
        assembler.push(Bytes::copy_from_slice(piece));
        loop {
            match assembler.take::<M>() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Err(error.to_string())),
            }
        }
    }
    (frames, Ok(assembler.is_between_frames()))
}

/// The stream in pieces whose lengths follow from `cut`, empty ones among them.
fn pieces(mut stream: &[u8], cut: u8) -> Vec<&[u8]> {
    let mut state = u32::from(cut) + 1;
    let mut pieces = Vec::new();
    while !stream.is_empty() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let longest = 1 << (state >> 28);
        let len = ((state >> 8) as usize % (longest + 1)).min(stream.len());
        let (piece, rest) = stream.split_at(len);
        pieces.push(piece);
        stream = rest;
    }
    pieces
}
