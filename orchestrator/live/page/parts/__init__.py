"""The page's HTML, styles and scripts."""
