//! What Hugging Face gives its templates beside Jinja's own: `raise_exception`, `strftime_now`, and `tojson` as Python writes it.

use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::Value as Json;

/// The moment that `strftime_now` tells: midnight of a date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateDate {
    year: i32,
    month: u32,
    day: u32,
}

impl Default for TemplateDate {
    /// The date that llama-3 templates fall back to.
    fn default() -> Self {
        Self { year: 2024, month: 7, day: 26 }
    }
}

impl std::str::FromStr for TemplateDate {
    type Err = String;

    /// Reads `YYYY-MM-DD`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no date of the form YYYY-MM-DD");
        let parts: Vec<&str> = text.split('-').collect();
        let [y, m, d] = parts[..] else { return Err(wrong()) };
        if y.len() != 4 || m.len() != 2 || d.len() != 2 || !text.bytes().all(|b| b.is_ascii_digit() || b == b'-') {
            return Err(wrong());
        }
        let number = |t: &str| t.parse::<u32>().map_err(|_| wrong());
        let (year, month, day) = (number(y)? as i32, number(m)?, number(d)?);
        if year < 1 || !(1..=12).contains(&month) || day < 1 || day > days_in(year, month) {
            return Err(wrong());
        }
        Ok(Self { year, month, day })
    }
}

fn is_leap(year: i32) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i32, month: u32) -> u32 {
    match month {
        2 => 28 + u32::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl TemplateDate {
    fn day_of_year(self) -> u32 {
        (1..self.month).map(|m| days_in(self.year, m)).sum::<u32>() + self.day
    }

    /// 0 is Sunday.
    fn weekday(self) -> usize {
        let before = self.year - 1;
        let days = before * 365 + before / 4 - before / 100 + before / 400 + self.day_of_year() as i32;
        days.rem_euclid(7) as usize
    }

    /// Formats like C's `strftime`; `%-d` and the like drop the leading zero.
    fn format(self, pattern: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut chars = pattern.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut code = chars.next();
            let bare = code == Some('-');
            if bare {
                code = chars.next();
            }
            let mut number = |value: u32, width: usize| {
                let width = if bare { 0 } else { width };
                out.push_str(&format!("{value:0width$}"));
            };
            match code {
                Some('d') => number(self.day, 2),
                Some('m') => number(self.month, 2),
                Some('Y') => number(self.year as u32, 4),
                Some('y') => number(self.year as u32 % 100, 2),
                Some('j') => number(self.day_of_year(), 3),
                Some('H' | 'M' | 'S') => number(0, 2),
                Some('B') => out.push_str(MONTHS[self.month as usize - 1]),
                Some('b') => out.push_str(&MONTHS[self.month as usize - 1][..3]),
                Some('A') => out.push_str(DAYS[self.weekday()]),
                Some('a') => out.push_str(&DAYS[self.weekday()][..3]),
                Some('%') => out.push('%'),
                other => {
                    return Err(format!(
                        "strftime_now: %{} is not supported",
                        other.map(String::from).unwrap_or_default()
                    ));
                }
            }
        }
        Ok(out)
    }
}

/// Adds the functions to an environment.
pub(super) fn add(environment: &mut Environment<'static>, date: TemplateDate) {
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("the template refuses this chat: {message}")))
    });
    environment.add_function("strftime_now", move |pattern: String| -> Result<String, Error> {
        date.format(&pattern).map_err(|message| Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_filter("tojson", to_json);
}

/// JSON as Python's `json.dumps(value, ensure_ascii=False)` writes it: a space after `:` and `,`, nothing escaped for HTML.
fn to_json(value: &Value, indent: Option<usize>, options: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        None => options.get::<Option<usize>>("indent")?,
        given => given,
    };
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    // `ensure_ascii` is accepted in its one meaning here; escaping would need another spelling of every string.
    if options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false) {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: ensure_ascii=true is not supported"));
    }
    options.assert_all_used()?;
    let json = serde_json::to_value(value).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    let mut out = String::new();
    write_json(&json, indent.map(|i| i.min(16)), 0, sort_keys, &mut out)?;
    Ok(Value::from_safe_string(out))
}

fn write_json(
    json: &Json,
    indent: Option<usize>,
    depth: usize,
    sort_keys: bool,
    out: &mut String,
) -> Result<(), Error> {
    let scalar = |json: &Json, out: &mut String| -> Result<(), Error> {
        out.push_str(&serde_json::to_string(json).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?);
        Ok(())
    };
    let line = |depth: usize, out: &mut String| {
        if let Some(indent) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    let comma = if indent.is_some() { "," } else { ", " };
    match json {
        Json::Array(items) if !items.is_empty() => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { comma } else { "" });
                line(depth + 1, out);
                write_json(item, indent, depth + 1, sort_keys, out)?;
            }
            line(depth, out);
            out.push(']');
        }
        Json::Object(map) if !map.is_empty() => {
            let mut entries: Vec<_> = map.iter().collect();
            if sort_keys {
                entries.sort_by_key(|(k, _)| *k);
            }
            out.push('{');
            for (i, (key, item)) in entries.into_iter().enumerate() {
                out.push_str(if i > 0 { comma } else { "" });
                line(depth + 1, out);
                scalar(&Json::String(key.clone()), out)?;
                out.push_str(": ");
                write_json(item, indent, depth + 1, sort_keys, out)?;
            }
            line(depth, out);
            out.push('}');
        }
        other => scalar(other, out)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(date: &str, pattern: &str, expected: Result<&str, &str>) {
        let got = date.parse::<TemplateDate>().and_then(|d| d.format(pattern));
        match (got, expected) {
            (Ok(got), Ok(expected)) => assert_eq!(got, expected, "{date} {pattern}"),
            (Err(got), Err(expected)) => assert!(got.contains(expected), "{date} {pattern}: {got}"),
            (got, expected) => panic!("{date} {pattern}: got {got:?}, expected {expected:?}"),
        }
    }

    /// Expected values from Python's `datetime.date.strftime`.
    #[test]
    fn dates() {
        check("2024-07-26", "%d %b %Y", Ok("26 Jul 2024"));
        check("2024-12-31", "%A, %j %B %-d/%-m/%y 100%%", Ok("Tuesday, 366 December 31/12/24 100%"));
        check("2000-01-01", "%a %H:%M:%S", Ok("Sat 00:00:00"));
        check("2023-02-29", "", Err("2023-02-29"));
        check("2023-2-9", "", Err("YYYY-MM-DD"));
        check("+023-02-09", "", Err("YYYY-MM-DD"));
        check("2023-02-28", "%Q", Err("%Q"));
        check("2023-02-28", "%", Err("not supported"));
    }
}
