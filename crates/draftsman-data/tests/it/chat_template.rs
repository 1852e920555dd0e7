use draftsman_data::{ChatTemplate, Message, TemplateOptions};
use serde_json::json;

fn options() -> TemplateOptions {
    TemplateOptions { bos_token: Some("<s>".into()), eos_token: Some("</s>".into()), ..TemplateOptions::default() }
}

fn chat() -> Vec<Message> {
    vec![Message::new("system", "Be <brief>."), Message::user(" Hi & bye "), Message::new("assistant", "Ok.")]
}

fn check(template: &str, expected: &str) {
    let got = ChatTemplate::new(template, "test", options()).and_then(|t| t.render(&chat(), None, true));
    assert_eq!(got.unwrap(), expected, "{template}");
}

fn check_error(template: &str, expected: &[&str]) {
    let message = ChatTemplate::new(template, "model/chat_template.jinja", options())
        .and_then(|t| t.render(&chat(), None, true))
        .unwrap_err()
        .to_string();
    for part in expected.iter().chain(&["model/chat_template.jinja"]) {
        assert!(message.contains(part), "{template}: {message:?} lacks {part:?}");
    }
}

/// A long chat, as long as large contexts are, stays within the limits.
#[test]
fn a_long_chat_renders() {
    let chat: Vec<Message> = (0..400)
        .flat_map(|i| {
            [Message::user(format!("{i} {}", "word ".repeat(400))), Message::new("assistant", "x".repeat(2000))]
        })
        .collect();
    let template = ChatTemplate::new(crate::tiny::TEMPLATE, "t", options()).unwrap();
    let text = template.render(&chat, None, true).unwrap();
    assert_eq!(text.matches("<|end|>").count(), 800);
    assert!(text.len() > 1_600_000);
}

/// Expected texts are what Python's Jinja gives with trim_blocks and lstrip_blocks, as Hugging Face sets it up.
#[test]
fn templates_render_as_in_python() {
    check(
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m.content | trim }}{% endfor %}{{ eos_token }}",
        "<s>[system]Be <brief>.[user]Hi & bye[assistant]Ok.</s>",
    );
    // Blocks on their own lines leave no trace.
    check("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc");
    check("{% if add_generation_prompt %}\n{{ '<a>\\n' }}{% endif %}", "<a>\n");
    // Python's methods, slices, namespaces, loop controls.
    check(
        "{{ messages[0].content.startswith('Be') and messages[-1]['content'].upper().split('.')[0] == 'OK' }}",
        "True",
    );
    check(
        "{% set ns = namespace(n=0) %}{% for m in messages[1:] %}{% set ns.n = ns.n + loop.index %}{% if ns.n > 0 %}{% break %}{% endif %}{% endfor %}{{ ns.n }}",
        "1",
    );
    check(
        "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}{{ m.role[:1] }}{% endfor %}",
        "sa",
    );
    check(
        "{{ messages[0].items() | length }}{{ messages[0].get('nothing', 'x') }}{{ ' x '.strip() }}{{ 'a-b'.replace('-', '+') }}",
        "2xxa+b",
    );
    check(
        "{{ none }}|{{ nothing }}|{{ tools is none }}|{{ [1, 2.5, 'a', true] }}|{{ 7 // 2 }}",
        "None||True|[1, 2.5, 'a', True]|3",
    );
    check("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('a') }}{{ f(x='b') }}", "<a><b>");
    // Nothing is escaped for HTML; JSON is Python's.
    check("{{ messages[1].content | tojson }}", "\" Hi & bye \"");
    check("{{ {'b': [1, {}], 'a': '<é>'} | tojson }}", "{\"b\": [1, {}], \"a\": \"<é>\"}");
    check("{{ {'b': [1, 2]} | tojson(indent=2) }}", "{\n  \"b\": [\n    1,\n    2\n  ]\n}");
    check("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}", "{\"a\": 2, \"b\": 1}");
    check("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024");
    // Marks for Hugging Face's own assistant mask are looked through.
    check("{% generation %}\nx{% endgeneration %}|{%- generation -%} y {%- endgeneration %}", "x|y");
}

#[test]
fn variables_tools_and_date_reach_the_template() {
    let mut options = TemplateOptions { date: "2025-03-01".parse().unwrap(), ..options() };
    options.variables.insert("enable_thinking".into(), json!(false));
    let template = ChatTemplate::new("{{ enable_thinking }} {{ tools[0].function.name }} {{ tools | tojson }} {{ strftime_now('%A') }} {{ messages[0].tag }}", "t", options).unwrap();
    let mut message = Message::user("x");
    message.extra.insert("tag".into(), json!("kept"));
    let tools = json!([{"type": "function", "function": {"name": "add", "a": 1}}]);
    let got = template.render(&[message], Some(&tools), false).unwrap();
    assert_eq!(got, "False add [{\"type\": \"function\", \"function\": {\"name\": \"add\", \"a\": 1}}] Saturday kept");
}

#[test]
fn errors_name_the_template_and_its_line() {
    check_error("\n{% if %}", &["line 2"]);
    check_error("{{ raise_exception('roles must alternate') }}", &["roles must alternate", "refuses this chat"]);
    check_error("\n\n{{ 'a' | nofilter }}", &["nofilter"]);
    check_error("{{ nofunction() }}", &["nofunction"]);
    check_error("{% include 'secret' %}", &["secret"]);
    check_error("{{ nothing.deeper }}", &[]);
    check_error("{{ strftime_now('%Q') }}", &["%Q"]);
}

#[test]
fn a_template_cannot_use_up_the_machine() {
    // Each would run for hours, or hold gigabytes, without the limits.
    let limits = [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='xxxxxxxx') %}{% for a in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for a in range(1000) %}{{ 'x' * 1000000 }}{% endfor %}",
    ];
    for template in limits {
        check_error(template, &[]);
    }
    check_error(&"x".repeat(2 << 20), &["bytes"]);
}

#[test]
fn the_output_is_bounded() {
    let long = Message::user("x".repeat(1 << 20));
    let template =
        ChatTemplate::new("{% for i in range(100) %}{{ messages[0].content }}{% endfor %}", "t", options()).unwrap();
    let message = template.render(&[long], None, false).unwrap_err().to_string();
    assert!(message.contains("64 MiB") || message.contains("more work or memory"), "{message}");
}

#[test]
fn a_folder_holds_a_template_in_one_of_three_ways() {
    let folder = tempfile::tempdir().unwrap();
    let load = || ChatTemplate::from_folder(folder.path(), options());
    assert!(load().unwrap().is_none());
    let config = folder.path().join("tokenizer_config.json");
    std::fs::write(
        &config,
        r#"{"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}"#,
    )
    .unwrap();
    assert_eq!(load().unwrap().unwrap().source(), "D");
    std::fs::write(&config, r#"{"chat_template": "C"}"#).unwrap();
    let from_config = load().unwrap().unwrap();
    assert_eq!(from_config.source(), "C");
    std::fs::write(folder.path().join("chat_template.jinja"), "J").unwrap();
    let from_file = load().unwrap().unwrap();
    assert_eq!(from_file.source(), "J");
    assert!(from_file.name().ends_with("chat_template.jinja") && from_config.name().contains("tokenizer_config.json"));
    assert_ne!(from_file.sha256(), from_config.sha256());
    std::fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    std::fs::write(&config, r#"{"chat_template": 3}"#).unwrap();
    assert!(load().unwrap_err().to_string().contains("chat_template"));
}
