//! What must be true in every state, beside what the simulation judges.

use super::event::Pending;
use super::parts::{Ev, Item, Obj, Up, World};
use super::state::FILE;
use leasefs_protocol::control::ToServer;
use leasefs_protocol::{Parts, RecallId, Scope, SessionId};

/// Cells of the file that processes come to.
const CELLS: u32 = 12;

/// Nobody's kernel believes what isn't so, whichever came first.
pub(super) fn beliefs(world: &mut World) {
    let cells = (0..CELLS).map(|cell| Item::Cell(FILE, cell));
    for item in cells.chain([Item::Attrs(FILE)]) {
        if world.cx.judge.is_unsettled(item) {
            continue;
        }
        for client in &world.clients {
            let believed = client.believes(&world.cx, item);
            let author = world.cx.judge.author(item);
            let own = author.is_none_or(|author| author == client.session());
            let Some(belief) = believed.filter(|b| !own && !world.cx.judge.may_be(item, *b)) else {
                continue;
            };
            let (index, current) = (client.make.index, world.cx.judge.current(item));
            world.cx.judge.accuse(Some(item), || {
                format!("the kernel of client {index} believes {item:?} to be {belief:x}, it is {current:x}")
            });
        }
    }
}

/// An approval is sent by who holds nothing any more of what it is about.
pub(super) fn approvals(world: &mut World, sent: &[Pending]) {
    for one in sent {
        let Ev::ToServer(link, _, up) = &one.ev else {
            continue;
        };
        let Up::Control(ToServer::Approve(approvals)) = &**up else {
            continue;
        };
        let index = world.cx.net.client(*link);
        for approval in approvals {
            approved(world, index, approval.recall);
        }
    }
}

fn approved(world: &mut World, index: usize, recall: RecallId) {
    let client = &world.clients[index];
    if !client.alive || !covers_data(world, client.session(), recall) {
        return;
    }
    let holds = client.holds_bytes(FILE);
    let pages = client.kernel.as_ref().map_or(0, |k| k.pages_of(FILE));
    if holds || pages > 0 {
        world.cx.judge.accuse(Some(Item::Cell(FILE, 0)), || {
            format!(
                "client {index} approves {recall} and has {pages} pages, unflushed bytes: {holds}"
            )
        });
    }
}

fn covers_data(world: &World, session: SessionId, recall: RecallId) -> bool {
    let recalls = world.server.recalls();
    let mut of_it = recalls
        .iter()
        .filter(|r| r.session == session && r.recall.id == recall);
    of_it.any(|open| match &open.recall.scope {
        Scope::Object { object, parts, .. } => {
            Obj::of(object) == FILE && parts.contains(Parts::DATA)
        }
        Scope::Everything => true,
    })
}
