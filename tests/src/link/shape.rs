//! What a link is like, as people write it.

use std::str::FromStr;
use std::time::Duration;

/// Which link.
#[derive(Debug, Clone, PartialEq)]
pub enum Spec {
    /// The kernel's, as fast as it goes.
    Veth,
    /// An emulated one.
    Shaped(Shape),
}

/// What distinguishes an emulated link.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Shape {
    /// From end to end and back.
    pub rtt: Duration,
    /// Bits per second each way, Ethernet's overhead included; none for as many as come.
    pub rate: Option<u64>,
    /// The part of the packets that is lost, each by itself.
    pub loss: f64,
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "veth" {
            return Ok(Self::Veth);
        }
        let mut shape = Shape::default();
        for part in text.split(',') {
            let bad = || format!("{part:?}: expected veth, or rtt=20ms,rate=1gbit,loss=0.1%");
            let (name, value) = part.split_once('=').ok_or_else(bad)?;
            match name {
                "rtt" => shape.rtt = time(value).ok_or_else(bad)?,
                "rate" => shape.rate = Some(rate(value).ok_or_else(bad)?),
                "loss" => shape.loss = loss(value).ok_or_else(bad)?,
                _ => return Err(bad()),
            }
        }
        Ok(Self::Shaped(shape))
    }
}

impl Spec {
    /// The round-trip time that it has at least.
    pub fn rtt(&self) -> Option<Duration> {
        match self {
            Self::Shaped(shape) => Some(shape.rtt).filter(|rtt| !rtt.is_zero()),
            Self::Veth => None,
        }
    }
}

fn with_unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(known, _)| *known == unit)?;
    Some(number.parse::<f64>().ok()? * factor)
}

fn time(text: &str) -> Option<Duration> {
    let seconds = with_unit(text, &[("us", 1e-6), ("ms", 1e-3), ("s", 1.0)])?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn rate(text: &str) -> Option<u64> {
    let bits = with_unit(text, &[("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)])?;
    (bits >= 1.0).then_some(bits as u64)
}

fn loss(text: &str) -> Option<f64> {
    with_unit(text, &[("%", 0.01)]).filter(|part| *part < 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_named_by_what_distinguishes_it() {
        assert_eq!("veth".parse(), Ok(Spec::Veth));
        let far = Shape {
            rtt: Duration::from_millis(20),
            rate: Some(1_000_000_000),
            loss: 0.001,
        };
        assert_eq!(
            "rtt=20ms,rate=1gbit,loss=0.1%".parse(),
            Ok(Spec::Shaped(far))
        );
        let near = Shape {
            rtt: Duration::from_micros(1500),
            ..Shape::default()
        };
        assert_eq!("rtt=1.5ms".parse(), Ok(Spec::Shaped(near)));
    }

    #[test]
    fn what_is_no_link_is_refused() {
        for text in [
            "",
            "rtt",
            "rtt=20",
            "rate=0gbit",
            "rate=1furlong",
            "loss=100%",
            "speed=1gbit",
            "rtt=20ms,,",
        ] {
            assert!(text.parse::<Spec>().is_err(), "{text}");
        }
    }
}
