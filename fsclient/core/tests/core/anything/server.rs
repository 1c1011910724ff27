//! A server that says anything that a server may say.

use super::{OBJECTS, Play, attr_of};
use crate::said::{Asked, DIR, FILE, handle, recall, welcome};
use leasefs_protocol::control::{Standing, ToClient, ToServer, Welcome};
use leasefs_protocol::{
    BootId, Change, FileKind, Grant, Mode, OpenId, OpenToken, Parts, Query, Recall, RecallId,
    Refusal, Reply, Request, Response, Scope, Stamp, Touched, answer, change, query,
};

impl Play {
    pub(super) fn connects(&mut self) {
        if self.chance.one_in(3) {
            self.process += 1;
            if self.chance.one_in(2) {
                self.host += 1;
            }
        }
        let all = [
            Standing::New,
            Standing::Resumed,
            Standing::Expired,
            Standing::Reclaim,
        ];
        let standing = self.chance.of(&all).unwrap_or(Standing::New);
        self.asked.clear();
        self.world.connected(Welcome {
            host: BootId([self.host; 16]),
            ..welcome(standing, self.process)
        });
    }

    pub(super) fn hears(&mut self, said: ToServer) {
        match said {
            ToServer::Cancel { seq } => {
                let begun = self.chance.one_in(2);
                self.world.say(ToClient::Cancelled { seq, begun });
            }
            ToServer::Reclaim(reclaim) => {
                let lost = self.chance.one_in(2);
                let leases = reclaim.leases.iter().map(|lease| lease.object);
                let opens = reclaim.opens.iter().map(|open| open.open);
                self.world.say(ToClient::Reclaimed {
                    lost_leases: leases.filter(|_| lost).collect(),
                    lost_opens: opens.filter(|_| lost).collect(),
                    lost_locks: Vec::new(),
                });
            }
            _ => {}
        }
    }

    fn object(&mut self, kind: FileKind) -> u8 {
        let object = match kind {
            FileKind::Directory => self.chance.below(4) + 1,
            _ => self.chance.below(OBJECTS - 4) + 5,
        };
        object as u8
    }

    /// The server answers one of the requests.
    pub(super) fn answers(&mut self) {
        if self.asked.is_empty() || !self.world.serves {
            return;
        }
        let at = self.chance.below(self.asked.len() as u64) as usize;
        let asked = self.asked.swap_remove(at);
        self.answer(&asked);
    }

    pub(super) fn answer(&mut self, asked: &Asked) {
        let refusals = [Refusal::Host(libc::ENOENT as u16), Refusal::TooMany];
        let result = match self.chance.of(&refusals) {
            Some(refusal) if self.chance.one_in(8) => Err(refusal),
            _ => Ok(self.response(asked)),
        };
        self.stamp += 1;
        let changes = asked.numbered().is_some();
        let mut named: Vec<u8> = asked
            .frame
            .request
            .handles()
            .map(|h| h.as_bytes()[0])
            .collect();
        if let Ok(
            Response::Object(answer::Object { handle, .. })
            | Response::Created(answer::Created { handle, .. }),
        ) = &result
        {
            named.push(handle.as_bytes()[0]);
        }
        if let Some(change) = asked.numbered() {
            named.extend(change.dropped.iter().map(|h| h.as_bytes()[0]));
        }
        let grants = named.iter().filter(|_| self.chance.one_in(2)).copied();
        let grants: Vec<u8> = grants.collect();
        let exclusive = self.chance.one_in(2);
        let grants = grants.into_iter().map(|object| Grant {
            object: handle(object),
            parts: Parts::ALL,
            mode: if exclusive { Mode::Write } else { Mode::Read },
            stamp: Stamp(self.stamp),
        });
        let touched = named.iter().filter(|_| changes).map(|object| Touched {
            object: handle(*object),
            attr: attr_of(*object),
        });
        let reply = Reply {
            renews: self.chance.one_in(2),
            stamp: Stamp(if changes { self.stamp } else { 0 }),
            grants: grants.collect(),
            touched: touched.collect(),
            room: Some(1 << 20),
            ..asked.reply(result)
        };
        self.world.reply(reply, b"");
    }

    fn response(&mut self, asked: &Asked) -> Response {
        match &asked.frame.request {
            Request::Query(Query::Lookup(_)) if self.chance.one_in(4) => Response::NoEntry,
            Request::Query(Query::Lookup(_)) => {
                let kind = if self.chance.one_in(2) { DIR } else { FILE };
                let object = self.object(kind);
                self.object_response(object)
            }
            Request::Change(_, Change::Make(_)) => {
                let object = self.object(DIR);
                self.object_response(object)
            }
            Request::Query(Query::GetAttr(query::GetAttr { object }))
            | Request::Change(_, Change::SetAttr(change::SetAttr { object, .. })) => {
                Response::Attr(attr_of(object.as_bytes()[0]))
            }
            Request::Query(Query::Open(query::Open { object, .. })) => {
                self.opens += 1;
                let object = object.as_bytes()[0];
                Response::Opened(answer::Opened {
                    open: OpenId(self.opens),
                    token: OpenToken(vec![1]),
                    attr: attr_of(object),
                })
            }
            Request::Change(_, Change::Create(_)) => {
                self.opens += 1;
                let object = self.object(FILE);
                Response::Created(answer::Created {
                    handle: handle(object),
                    attr: attr_of(object),
                    open: OpenId(self.opens),
                    token: OpenToken(vec![1]),
                })
            }
            Request::Change(_, Change::Write(change::Write { at, .. })) => {
                Response::Written(answer::Written {
                    len: asked.payload.len() as u64,
                    offset: at.first().unwrap_or_default(),
                    unset: None,
                    version: None,
                })
            }
            Request::Query(Query::ReadDir(_)) => Response::Entries(answer::Entries {
                entries: Vec::new(),
                end: true,
            }),
            _ => Response::Done,
        }
    }

    fn object_response(&self, object: u8) -> Response {
        Response::Object(answer::Object {
            handle: handle(object),
            attr: attr_of(object),
        })
    }

    pub(super) fn recalls(&mut self) {
        if !self.world.serves {
            return;
        }
        self.stamp += 1;
        let object = self.chance.below(OBJECTS + 1) as u8;
        let all = [Parts::ALL, Parts::DATA, Parts::ATTRS, Parts::NONE];
        let parts = self.chance.of(&all).unwrap_or(Parts::ALL);
        let names: &[&str] = if self.chance.one_in(2) {
            &["a", "b"]
        } else {
            &[]
        };
        let scope = match self.chance.one_in(20) {
            true => Scope::Everything,
            false => recall(0, object, parts, names).scope,
        };
        self.world.recall(Recall {
            id: RecallId(self.stamp),
            stamp: Stamp(self.stamp),
            scope,
        });
    }
}
