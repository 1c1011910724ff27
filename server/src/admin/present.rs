//! What commands print for people.

use super::control::ServerStatus;
use crate::state::{Enrolled, RevokeError, wall_clock};
use crate::status::{Away, Lock, SessionStatus, TermZero, Waiting};
use leasefs_host::output::span;
use leasefs_protocol::escaped;
use leasefs_protocol::limits::REVOKE_PATIENCE;
use std::collections::BTreeMap;
use std::fmt::Write;

/// More clients that may be meant are not listed.
const CANDIDATES: usize = 16;
/// More locks are not listed.
const MOST_LOCKS: usize = 64;

/// Why a client wasn't revoked; if several may be meant, which. What nobody chooses stands first in
/// each line, and a name ends it: so none can pretend to be another.
pub fn not_revoked(error: &RevokeError) -> String {
    let RevokeError::Ambiguous { candidates, .. } = error else {
        return error.to_string();
    };
    let listed = candidates.get(..CANDIDATES).unwrap_or(candidates);
    let more = match candidates.len() - listed.len() {
        0 => String::new(),
        more => format!("and {more} more\n"),
    };
    let text = format!("{error}\n{}{more}", clients(listed, None));
    text.trim_end().to_owned()
}

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
        let name = escaped(&client.name);
        let _ = writeln!(text, "{key}  {access}{rights}{border}  {when}  {name}");
        text
    })
}

/// A client that has been revoked.
pub fn revoked(client: &Enrolled, under_way: usize) -> String {
    let (key, name) = (client.key, escaped(&client.name));
    let done = format!("revoked {key} ({name}): only a ticket made from now on lets it in again\n");
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
    span(now.saturating_sub(then))
}

/// A running server.
pub fn status(server: &ServerStatus) -> String {
    let status = &server.status;
    let mut lines = vec![
        format!(
            "{}  at {}, process {}",
            escaped(server.export.as_os_str().as_encoded_bytes()),
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
    if let Some(why) = &status.state_trouble {
        lines.push(format!(
            "  STATE      can't be written: {why}; changes and new sessions are refused until it can"
        ));
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
    let (present, groups) = status.present_and_away();
    lines.extend(present.into_iter().map(session));
    lines.extend(groups.iter().map(away));
    lines.extend(status.waiting.iter().map(waiting));
    lines.extend(status.term_zero.iter().map(term_zero));
    lines.extend(status.locks.iter().take(MOST_LOCKS).map(lock));
    if let Some(more) = status
        .locks
        .len()
        .checked_sub(MOST_LOCKS)
        .filter(|more| *more > 0)
    {
        lines.push(format!("  and {more} more locks: see --json"));
    }
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
    let mount = known_by(session);
    format!(
        "    {}  {address}  {mount}\n      {lease}{reclaiming}{denied}; leases {}, opens {}, recalls open {}\n      \
         requests {}; renewals {}",
        short(&session.session),
        session.leases,
        session.opens,
        session.recalls,
        counts(&session.requests),
        session.renewals
    )
}

fn known_by(session: &SessionStatus) -> String {
    let called = escaped(session.called());
    match session.mount.as_str() {
        "" => format!("of {called}, not back since the server began"),
        _ => called.to_string(),
    }
}

fn away(away: &Away<'_>) -> String {
    let kept = away.longest.kept_ms.unwrap_or_default() / 1000;
    format!(
        "    {} away     {}: no leases, opens {}; kept for {} at most, should it come back",
        away.count,
        known_by(away.longest),
        away.opens,
        span(kept)
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

fn term_zero(zero: &TermZero) -> String {
    let which = which(zero.path.as_deref(), zero.inode);
    let what = match zero.directory {
        true => format!("new files in the directory {which}, where others look,"),
        false => format!("writing the file {which}, which bounces,"),
    };
    format!(
        "  term zero  for {what} since {}, looked at again in {}: {} writes buffered would cost {} waits",
        seconds(zero.since_ms),
        seconds(zero.until_ms),
        zero.hits,
        zero.recalls
    )
}

fn lock(lock: &Lock) -> String {
    let which = which(lock.path.as_deref(), lock.inode);
    let mode = if lock.shared { "shared" } else { "exclusive" };
    let range = match (lock.first, lock.last) {
        (0, None) => String::new(),
        (first, None) => format!(" from byte {first} on"),
        (first, Some(last)) => format!(" of bytes {first} to {last}"),
    };
    let stands = match (lock.token, lock.decided_there) {
        (None, _) => "is waited for".to_owned(),
        (Some(token), false) => format!("({token}) is held"),
        (Some(token), true) => format!("({token}) was held when its mount was left to decide"),
    };
    format!(
        "  lock       {} {mode}{range} of the file {which} {stands} by process {} of {}, since {}  {}",
        lock.kind,
        lock.pid,
        short(&lock.session),
        seconds(lock.since_ms),
        escaped(&lock.mount)
    )
}

fn which(path: Option<&str>, inode: Option<u64>) -> String {
    match (path, inode) {
        (Some(path), _) => escaped(path).to_string(),
        (None, Some(inode)) => format!("of inode {inode}"),
        (None, None) => "that is gone".to_owned(),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Role;

    /// A terminal would go up a line, write over it, and show one more client.
    const HOSTILE: &str =
        "x\u{1b}[1A\r0123456789abcdef  rw trust  revoked 3 s ago  admin\n\u{202e}y";

    fn client(name: &str) -> Enrolled {
        let (key, ticket) = ("ab".repeat(32), "cd".repeat(32));
        let text = serde_json::json!({
            "key": key, "ticket": ticket, "name": name, "role": Role::default(),
            "enrolled": 0, "revoked": null,
        });
        serde_json::from_value(text).expect("a client")
    }

    #[test]
    fn a_hostile_name_forges_no_line_of_the_list() {
        let text = clients(&[client(HOSTILE), client("honest")], None);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(!text.contains(['\u{1b}', '\r', '\u{202e}']), "{text:?}");
        assert!(
            text.lines()
                .all(|line| line.starts_with("abababababababab  rw  enrolled "))
        );
    }

    #[test]
    fn a_hostile_mount_point_forges_no_line_of_the_status() {
        let session = SessionStatus {
            session: "12".repeat(16),
            mount: HOSTILE.to_owned(),
            address: Some("10.0.0.9:5".to_owned()),
            ..SessionStatus::default()
        };
        let text = super::session(&session);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(
            text.starts_with("    12121212  10.0.0.9:5  x\\u{1b}"),
            "{text}"
        );
    }

    fn away(session: &str, kept_ms: u64) -> SessionStatus {
        SessionStatus {
            session: session.repeat(16),
            mount: "nas:/mnt/data".to_owned(),
            kept_ms: Some(kept_ms),
            opens: 2,
            ..SessionStatus::default()
        }
    }

    fn sessions_shown(status: crate::status::Status) -> String {
        super::status(&ServerStatus {
            export: "/srv".into(),
            address: "[::]:4430".into(),
            pid: 7,
            note: None,
            status,
        })
    }

    #[test]
    fn sessions_that_are_away_are_one_line_beside_the_living_one_of_their_name() {
        let living = SessionStatus {
            address: Some("10.0.0.9:5".to_owned()),
            kept_ms: None,
            expires_ms: Some(9_000),
            ..away("cd", 0)
        };
        let nameless = SessionStatus {
            mount: String::new(),
            client: "nas".to_owned(),
            ..away("ef", 3_600_000)
        };
        let sessions = vec![away("12", 60_000), living, away("34", 2_460_000), nameless];
        let text = sessions_shown(crate::status::Status {
            sessions,
            ..Default::default()
        });
        for line in [
            "  sessions   4",
            "    cdcdcdcd  10.0.0.9:5  nas:/mnt/data",
            "    2 away     nas:/mnt/data: no leases, opens 4; kept for 41 min at most, should it come back",
            "    1 away     of nas, not back since the server began: no leases, opens 2; kept for 60 min at most, should it come back",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert_eq!(text.lines().count(), 9, "{text}");
    }

    #[test]
    fn a_session_that_is_away_is_told_for_itself_as_long_as_others_may_wait_for_it() {
        let expires = SessionStatus {
            expires_ms: Some(100),
            ..away("12", 60_000)
        };
        let reclaims = SessionStatus {
            reclaiming: true,
            ..away("34", 60_000)
        };
        let asks = away("56", 60_000);
        let waiting = Waiting {
            session: asks.session.clone(),
            ..Waiting::default()
        };
        let text = sessions_shown(crate::status::Status {
            sessions: vec![expires, reclaims, asks],
            waiting: vec![waiting],
            ..Default::default()
        });
        assert_eq!(text.matches("  not connected  ").count(), 3, "{text}");
        assert!(!text.contains(" away "), "{text}");
    }

    #[test]
    fn a_file_that_bounces_is_told_by_its_inode_with_what_was_counted() {
        let zero = TermZero {
            inode: Some(4711),
            since_ms: 8_100,
            until_ms: 3_900,
            hits: 2,
            recalls: 90,
            ..TermZero::default()
        };
        let text = super::term_zero(&zero);
        let counted =
            "since 8.1 s, looked at again in 3.9 s: 2 writes buffered would cost 90 waits";
        assert!(
            text.contains("inode 4711") && text.ends_with(counted),
            "{text}"
        );
        let directory = TermZero {
            directory: true,
            ..zero
        };
        let text = super::term_zero(&directory);
        assert!(text.contains("in the directory of inode 4711"), "{text}");
        let known = TermZero {
            path: Some("/a\nb".into()),
            ..directory
        };
        assert!(super::term_zero(&known).contains(r"the directory /a\nb,"));
        let gone = TermZero::default();
        assert!(super::term_zero(&gone).contains("that is gone"));
    }

    #[test]
    fn candidates_are_listed_by_key_and_not_more_than_can_be_read() {
        let candidates = vec![client(HOSTILE); 20];
        let which = "ab\nab".to_owned();
        let text = not_revoked(&RevokeError::Ambiguous { which, candidates });
        assert!(text.contains("and 4 more"), "{text}");
        assert_eq!(
            text.matches("\nabababababababab  rw  enrolled ").count(),
            16
        );
    }
}
