//! The server under well-formed hostile sequences: several sessions of hostile clients say what
//! they like over QUIC to a server as it is shipped, beside a client that behaves.
//!
//! The lease core's invariants hold, what the hostile clients may not reach is neither read nor
//! touched, and the client that behaves is served in time.

mod guest;
mod hostile;
mod house;

use crate::forge::Choices;
use guest::Guest;
use hostile::Hostile;
use house::House;
use std::time::Duration;

/// Most steps of one input.
const STEPS: usize = 96;
/// How long answers may take to come while nobody waits for anybody.
const MOMENT: Duration = Duration::from_millis(3);

/// One byte for how the server is run, the rest for what is said.
pub fn run(input: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(scene(input));
}

async fn scene(input: &[u8]) {
    let mut choices = Choices::new(input);
    let house = House::open();
    let mut guest = Guest::enter(&house).await;
    let mut hostile = Vec::new();
    for number in 0..=choices.byte() % 3 {
        // The last may only read.
        hostile.push(Hostile::enter(&house, number, number == 2).await);
    }
    for _ in 0..STEPS {
        if choices.is_empty() {
            break;
        }
        let who = usize::from(choices.byte()) % hostile.len();
        if let Some(hostile) = hostile.get_mut(who) {
            hostile.step(&house, &mut choices).await;
        }
        house.check();
    }
    guest.is_served(&house).await;
    for hostile in &hostile {
        house.server().revoke(hostile.key()).await;
        hostile.told_nothing_secret();
    }
    guest.is_served(&house).await;
    house.check();
    house.is_untouched();
}
