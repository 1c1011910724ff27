//! `fsclient recover list`.

use crate::commands::{show, show_json};
use crate::recovery::{ByteRange, Folder, Item, Recovery, path_for_people};
use leasefs_protocol::escaped;

/// People get so many ranges of each item.
const NAMED_RANGES: usize = 8;

pub(super) fn run(recovery: &Recovery, json: bool) -> Result<(), String> {
    let all = recovery.items();
    let (items, errors): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
    let items: Vec<Item> = items.into_iter().flatten().collect();
    if json {
        let document = serde_json::json!({ "items": items });
        show_json(&document)?;
    } else if items.is_empty() {
        let none =
            |folder: &Folder| format!("nothing is kept in {}\n", path_for_people(folder.path()));
        show(&recovery.folders().iter().map(none).collect::<String>())?;
    } else {
        show(&items.iter().map(for_people).collect::<String>())?;
    }
    // One that can't be read doesn't hide the others.
    let errors: Vec<String> = errors
        .into_iter()
        .filter_map(|item| item.err().map(|e| e.to_string()))
        .collect();
    match errors.is_empty() {
        true => Ok(()),
        false => Err(errors.join("\n")),
    }
}

fn for_people(item: &Item) -> String {
    format!(
        "{}  {}\n  from  {}{}\n  when  {}\n  why   {}\n  kept  {} bytes{}; the file had {}\n",
        item.id,
        item.file(),
        escaped(&item.source),
        item.writer
            .map_or(String::new(), |user| format!(", by user {}", user.uid)),
        utc(item.time_ms),
        item.reason,
        item.bytes,
        ranges(&item.ranges),
        item.size
    )
}

pub(super) fn ranges(ranges: &[ByteRange]) -> String {
    let named = ranges.iter().take(NAMED_RANGES).map(range);
    let mut named: Vec<String> = named.collect();
    match ranges.len().checked_sub(NAMED_RANGES) {
        _ if named.is_empty() => return String::new(),
        Some(more) if more > 0 => named.push(format!("{more} more ranges")),
        _ => {}
    }
    format!(": {}", named.join(", "))
}

/// First and last byte.
pub(super) fn range(range: &ByteRange) -> String {
    format!("{}-{}", range.offset, range.end().saturating_sub(1))
}

/// Wall-clock time from milliseconds since 1970.
fn utc(millis: u64) -> String {
    let (days, seconds) = (millis / 86_400_000, millis / 1000 % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// The date of a day, counted from 1970-01-01 (Hinnant, "chrono-compatible low-level date
/// algorithms"): years begin in March there, so that the leap day is a year's last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        // From `date -u -d @SECONDS`.
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_399_999), "2000-02-28 23:59:59 UTC");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(951_868_800_000), "2000-03-01 00:00:00 UTC");
        assert_eq!(utc(1_795_280_914_000), "2026-11-21 17:08:34 UTC");
        assert_eq!(utc(4_107_542_399_000), "2100-02-28 23:59:59 UTC");
        assert_eq!(utc(4_107_542_400_000), "2100-03-01 00:00:00 UTC");
    }

    #[test]
    fn many_ranges_are_counted_rather_than_named() {
        let some = |count| {
            let range = |offset| ByteRange { offset, length: 2 };
            ranges(&(0..count).map(|n| range(n * 10)).collect::<Vec<_>>())
        };
        assert_eq!(some(0), "");
        assert_eq!(some(2), ": 0-1, 10-11");
        assert!(some(8).ends_with(", 70-71"));
        assert!(some(11).ends_with(", 70-71, 3 more ranges"));
    }
}
