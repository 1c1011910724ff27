//! What commands print for people.

use super::control::ServerStatus;
use crate::state::{Enrolled, wall_clock};
use crate::status::{SessionStatus, Waiting};
use leasefs_protocol::limits::REVOKE_PATIENCE;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The list of clients.
pub fn clients(clients: &[Enrolled], note: Option<&str>) -> String {
    let mut text = note.map_or(String::new(), |note| format!("NOTE: {note}\n"));
    if clients.is_empty() {
        text.push_str("no clients: give a ticket to one (`fsserver ticket` prints it)\n");
        return text;
    }
    let now = wall_clock();
    clients.iter().fold(text, |mut text, client| {
        let key: String = client.key.to_string().chars().take(16).collect();
        let access = if client.role.read_only { "ro" } else { "rw" };
        let rights = match client.role.acts_as {
            Some(user) => format!(" as {user}"),
            None if client.role.trust => " trust".to_owned(),
            None => String::new(),
        };
        let border = client.role.border.as_ref();
        let border = border.map_or(String::new(), |dir| format!(" in {:?}", dir.path));
        let when = match client.revoked {
            Some(when) => format!("revoked {} ago", age(now, when)),
            None => format!("enrolled {} ago", age(now, client.enrolled)),
        };
        let _ = writeln!(
            text,
            "{key}  {access}{rights}{border}  {}  {when}",
            client.name
        );
        text
    })
}

/// A client that has been revoked.
pub fn revoked(client: &Enrolled, under_way: usize) -> String {
    let (name, key) = (&client.name, client.key);
    let done = format!("revoked {name} ({key}): only a ticket made from now on lets it in again\n");
    match under_way {
        0 => done,
        calls => format!(
            "{done}NOTE: {calls} of its requests are with the storage host still, which has not \
             answered them within {} s: they may yet take effect, nothing else will\n",
            REVOKE_PATIENCE.as_secs()
        ),
    }
}

fn age(now: u64, then: u64) -> String {
    let seconds = now.saturating_sub(then);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// A running server.
pub fn status(server: &ServerStatus) -> String {
    let status = &server.status;
    let mut lines = vec![
        format!(
            "{}  at {}, process {}",
            server.export.display(),
            server.address,
            server.pid
        ),
        format!("  term       {}", seconds(status.term_ms)),
        format!(
            "  requests   {}; renewals: {}",
            counts(&status.requests),
            status.renewals
        ),
    ];
    if let Some(note) = &server.note {
        lines.push(format!("  note       {note}"));
    }
    if let Some(left) = status.grace_ms {
        lines.push(format!(
            "  grace      changes wait for clients of the server's earlier life, {} at most",
            seconds(left)
        ));
    }
    if status.violations > 0 {
        lines.push(format!(
            "  violations {} connections closed because their client broke the protocol",
            status.violations
        ));
    }
    lines.push(format!("  sessions   {}", status.sessions.len()));
    lines.extend(status.sessions.iter().map(session));
    lines.extend(status.waiting.iter().map(waiting));
    lines.join("\n") + "\n"
}

fn session(session: &SessionStatus) -> String {
    let address = session.address.as_deref().unwrap_or("not connected");
    let lease = match session.expires_ms {
        Some(left) => format!("lease ends in {}", seconds(left)),
        None => "no lease time left".to_owned(),
    };
    let reclaiming = if session.reclaiming {
        ", may reclaim"
    } else {
        ""
    };
    let denied = session.denied_ms.map_or(String::new(), |left| {
        format!(", no leases for {}: it held others up", seconds(left))
    });
    format!(
        "    {}  {} ({address})\n      {lease}{reclaiming}{denied}; leases {}, opens {}, recalls open {}\n      \
         requests {}; renewals {}",
        short(&session.session),
        session.mount,
        session.leases,
        session.opens,
        session.recalls,
        counts(&session.requests),
        session.renewals
    )
}

fn waiting(waiting: &Waiting) -> String {
    let holders: Vec<&str> = waiting.holders.iter().map(|id| short(id)).collect();
    let whom = match (waiting.grace, holders.is_empty()) {
        (true, _) => "the end of the grace".to_owned(),
        (false, true) => "its turn".to_owned(),
        (false, false) => holders.join(", "),
    };
    let until = waiting
        .until_ms
        .map_or(String::new(), |left| format!(", {} at most", seconds(left)));
    format!(
        "  waiting    {} of {} for {whom}, since {}{until}",
        waiting.request,
        short(&waiting.session),
        seconds(waiting.since_ms)
    )
}

fn short(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}

fn seconds(millis: u64) -> String {
    format!("{}.{} s", millis / 1000, millis % 1000 / 100)
}

fn counts(counts: &BTreeMap<String, u64>) -> String {
    if counts.is_empty() {
        return "none".to_owned();
    }
    let all: Vec<String> = counts
        .iter()
        .map(|(kind, count)| format!("{kind} {count}"))
        .collect();
    all.join(", ")
}
