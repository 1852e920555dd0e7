//! The page's look: one column, system fonts, colours for light and dark.

pub(super) const STYLE: &str = "\
:root{--ink:#1c2430;--paper:#fdfdfb;--soft:#5b6675;--line:#dde1e6;--card:#f3f5f7;\
--c0:#2f6fb3;--c1:#c2571a;--c2:#2f8f5b;--c3:#8a4fb0;--c4:#a08000;\
--s1:#cfe3f7;--s2:#c6ecd6;--s3:#fbe3b8;--s4:#f6cfc4;--s5:#e3d3f3;--s6:#cdeff0;--s7:#e8e4c4;--no:#b3261e}\
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--paper:#12161c;--soft:#9aa5b3;--line:#2c343f;--card:#1a2029;\
--c0:#6fa8e6;--c1:#f0945a;--c2:#66c792;--c3:#c394e6;--c4:#d9bd4a;\
--s1:#1d3d5e;--s2:#1c4a33;--s3:#54421a;--s4:#573026;--s5:#41305a;--s6:#1d494b;--s7:#474325;--no:#ff8a80}}\
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,sans-serif}\
main{max-width:62rem;margin:0 auto;padding:2.2rem 1.2rem 4rem}h1{font-size:1.7rem;margin:0 0 .6rem}\
h2{font-size:1.15rem;margin:2.4rem 0 .4rem}.headline{font-size:1.2rem;margin:.4rem 0}\
.headline strong{font-size:2.3rem;color:var(--c0);font-variant-numeric:tabular-nums}\
.note{color:var(--soft);font-size:.9rem;margin:.2rem 0 .8rem}.wide{overflow-x:auto}\
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}\
th,td{padding:.38rem .45rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th:first-child{text-align:left;font-weight:600}thead th{color:var(--soft);font-weight:500}\
svg{width:100%;height:auto;max-width:46rem;display:block}svg text{fill:var(--soft);font-size:11px}\
svg .grid{stroke:var(--line)}svg polyline{fill:none;stroke-width:2;stroke:var(--k)}svg circle{fill:var(--k)}\
svg .name{fill:var(--k);font-size:12px}svg rect{fill:var(--c0)}\
.c0{--k:var(--c0)}.c1{--k:var(--c1)}.c2{--k:var(--c2)}.c3{--k:var(--c3)}.c4{--k:var(--c4)}\
.row{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0;flex:1 1 12rem;max-width:18rem}\
figcaption{font-size:.85rem;color:var(--soft);text-align:center}\
details{margin:1rem 0;border:1px solid var(--line);border-radius:8px;overflow:hidden}\
summary{padding:.5rem .8rem;background:var(--card);cursor:pointer}summary small{color:var(--soft)}\
pre{margin:0;padding:.7rem .8rem;white-space:pre-wrap;overflow-wrap:anywhere;font:13px/1.7 ui-monospace,monospace}\
.prompt{color:var(--soft);border-bottom:1px solid var(--line)}\
.d,.t,.x{border-radius:3px;padding:1px 0}.x{color:var(--no);text-decoration:line-through;opacity:.75}\
.legend span{margin-right:.4rem;padding:1px 6px;font-size:.82rem}\
.s1{background:var(--s1)}.s2{background:var(--s2)}.s3{background:var(--s3)}.s4{background:var(--s4)}\
.s5{background:var(--s5)}.s6{background:var(--s6)}.s7{background:var(--s7)}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1.2rem;font-size:.9rem}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}\
";
