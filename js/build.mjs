/**
 * Bundle the widget into one ES module and one stylesheet, and hold it to its size.
 *
 * Every widget on a page is sent the whole bundle over the websocket, and a notebook saved with
 * widget state stores it again: past the limit the build fails rather than grows in silence.
 */
import { statSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const LIMIT = 100 * 1024;
const outdir = fileURLToPath(new URL("../aiflow_jupyter/static/", import.meta.url));

await build({
  entryPoints: { widget: "widget/index.ts" },
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "none",
  outdir,
});
await build({ entryPoints: { widget: "widget/style.css" }, minify: true, outdir });

const { size } = statSync(`${outdir}widget.js`);
console.log(`widget.js: ${size} bytes of ${LIMIT}`);
if (size > LIMIT) {
  console.error(`widget.js is ${size - LIMIT} bytes over its limit of ${LIMIT}`);
  process.exit(1);
}
