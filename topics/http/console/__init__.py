"""The console: a page of the daemon's own, for a browser (`docs/spec/console.md`).

assets   the files of the page, and the headers that they are sent with

The files are in `assets/`: `index.html`, `style.css`, modules of JavaScript that the browser loads as they are
(`assets/app.js` names them), and the files of others in `assets/vendor/`, which `scripts/vendor` fetches. The page is a
client of `/v0` and of nothing else.
"""
