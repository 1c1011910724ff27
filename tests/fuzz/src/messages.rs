//! Every decoder of the wire, on arbitrary bytes.

use crate::memory;
use leasefs_protocol::codec::{self, PREFIX};
use leasefs_protocol::control::{Push, ToClient, ToServer};
use leasefs_protocol::{Reply, RequestFrame};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// A vector is made with room for what its length claims, up to 1 MiB; of such at most this many
/// are under way at a time.
const CLAIMED: usize = 4 << 20;
/// The most a byte of a header can become: it may be an empty handle (65 bytes) in a vector that
/// has just doubled and is being copied.
const GROWTH: usize = 65 * 4;

/// The first byte says of what kind the message is, the rest is its header.
pub fn run(input: &[u8]) {
    let Some((kind, header)) = input.split_first() else {
        return;
    };
    match kind % 5 {
        0 => decoder::<ToServer>(header),
        1 => decoder::<ToClient>(header),
        2 => decoder::<Push>(header),
        3 => decoder::<RequestFrame>(header),
        _ => decoder::<Reply>(header),
    }
}

/// Decoding takes memory in proportion to the header, and what it comes to reads back from its
/// own encoding.
fn decoder<M: Serialize + DeserializeOwned + Debug + PartialEq>(header: &[u8]) {
    let (decoded, peak) = memory::peak(|| codec::decode::<M>(header));
    let limit = CLAIMED + GROWTH * header.len();
    assert!(
        peak <= limit,
        "{} bytes took {peak} of memory, more than {limit}",
        header.len()
    );
    let Ok(message) = decoded else {
        return;
    };
    let frame = codec::encode(&message, 0).expect("no longer than it came");
    let again = codec::decode::<M>(frame.get(PREFIX..).unwrap_or_default());
    assert_eq!(again.as_ref(), Ok(&message));
}
