//! Golden bytes: what each message, and each variant of each enum in one, is on the wire.
//!
//! A change of a line of `golden.txt` is a new protocol version.

use super::{decode, encode, header};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;

mod frames;
mod messages;
mod requests;

const GOLDEN: &str = include_str!("../golden.txt");
/// Reaches each variant of an enum of 17 but for one seed in 10^12; the seed is fixed.
const CASES: usize = 512;

fn bytes<M: Serialize>(message: &M) -> Vec<u8> {
    header(&encode(message, 0).expect("within the limits")).to_vec()
}

/// A line of the golden file; its bytes read back as the message.
fn line<M>(name: &str, message: &M) -> String
where
    M: Serialize + DeserializeOwned + Debug + PartialEq,
{
    let bytes = bytes(message);
    assert_eq!(decode::<M>(&bytes).as_ref(), Ok(message));
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    format!("{name} {hex}\n")
}

/// Names of an enum's variants by discriminant.
type Variants = BTreeMap<u8, String>;

/// The variants among `messages`. No enum of the protocol needs more than one byte for them.
fn variants<M: Serialize + Debug>(messages: &[M]) -> Variants {
    let entry = |message: &M| (bytes(message)[0], variant(message));
    messages.iter().map(entry).collect()
}

fn variant<M: Debug>(message: &M) -> String {
    let text = format!("{message:?}");
    let end = text.find(|c: char| !c.is_alphanumeric());
    text[..end.unwrap_or(text.len())].to_owned()
}

/// An enum of the protocol.
struct Pinned {
    name: &'static str,
    lines: String,
    pinned: Variants,
    generated: Variants,
}

impl Pinned {
    fn new<M>(name: &'static str, mut samples: Vec<M>) -> Self
    where
        M: Arbitrary + Serialize + DeserializeOwned + PartialEq,
    {
        samples.sort_by_key(|m| bytes(m)[0]);
        let to_line = |m: &M| line(&format!("{name}::{}", variant(m)), m);
        Self {
            name,
            lines: samples.iter().map(to_line).collect(),
            pinned: variants(&samples),
            generated: variants(&generate::<M>()),
        }
    }
}

fn generate<M: Arbitrary>() -> Vec<M> {
    let mut runner = TestRunner::deterministic();
    let mut message = || any::<M>().new_tree(&mut runner).expect("a value").current();
    (0..CASES).map(|_| message()).collect()
}

fn enums() -> Vec<Pinned> {
    vec![
        Pinned::new("Request", requests::requests()),
        Pinned::new("Query", requests::queries()),
        Pinned::new("Change", requests::changes()),
        Pinned::new("What", requests::makes()),
        Pinned::new("Fill", requests::fills()),
        Pinned::new("WriteAt", requests::write_ats()),
        Pinned::new("WriteKind", requests::write_kinds()),
        Pinned::new("Durability", requests::durabilities()),
        Pinned::new("SetTime", requests::set_times()),
        Pinned::new("Response", messages::responses()),
        Pinned::new("FileKind", messages::file_kinds()),
        Pinned::new("Refusal", messages::refusals()),
        Pinned::new("ToServer", messages::to_server()),
        Pinned::new("ToClient", messages::to_client()),
        Pinned::new("Standing", messages::standings()),
        Pinned::new("IdentityPolicy", messages::identity_policies()),
        Pinned::new("HelloRefusal", messages::hello_refusals()),
        Pinned::new("Push", messages::pushes()),
        Pinned::new("Scope", messages::scopes()),
        Pinned::new("Mode", messages::modes()),
        Pinned::new("LockOutcome", messages::lock_outcomes()),
        Pinned::new("LockKind", messages::lock_kinds()),
        Pinned::new("LockMode", messages::lock_modes()),
    ]
}

#[test]
fn golden_bytes_pin_the_wire_format() {
    let variants: String = enums().into_iter().map(|pinned| pinned.lines).collect();
    let actual = frames::lines() + &variants;
    for (actual, golden) in actual.lines().zip(GOLDEN.lines()) {
        assert_eq!(actual, golden);
    }
    assert_eq!(actual, GOLDEN);
}

#[test]
fn every_variant_has_a_golden_line() {
    for Pinned {
        name,
        pinned,
        generated,
        ..
    } in enums()
    {
        assert_eq!(pinned, generated, "golden samples of {name}");
    }
}
