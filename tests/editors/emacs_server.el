;;; -*- lexical-binding: t -*-
;; Asks the language server what a user would, and writes down what comes.
(require 'eglot)
(require 'json)

(defvar out nil)

(defun note (key value) (push (cons key value) out))

(defun wait-for (what condition)
  (with-timeout (150 (error "No %s" what))
    (while (not (funcall condition))
      (accept-process-output nil 0.05))))

(defun written ()
  (with-temp-file (getenv "OUT")
    (insert (json-encode (reverse out)))))

(condition-case problem
    (progn
      (find-file (car command-line-args-left))
      (unless (eq major-mode 'opg-mode) (error "The mode is %s" major-mode))
      ;; A batch has no command loop in which eglot-ensure would connect.
      (apply #'eglot--connect (eglot--guess-contact))
      (wait-for "server" #'eglot-current-server)
      (flymake-mode 1)
      (wait-for "diagnostics" (lambda () (flymake-start) (flymake-diagnostics)))
      (note 'diagnostics
            (mapcar (lambda (d)
                      (format "%d: %s" (line-number-at-pos (flymake-diagnostic-beg d))
                              (flymake-diagnostic-text d)))
                    (flymake-diagnostics)))

      (goto-char (point-min))
      (search-forward "sof")
      (insert "t")
      (eglot--signal-textDocument/didChange)
      (wait-for "clean text" (lambda () (flymake-start) (not (flymake-diagnostics))))

      (note 'hover (plist-get (plist-get (eglot--request (eglot-current-server) :textDocument/hover
                                                          (eglot--TextDocumentPositionParams))
                                         :contents)
                              :value))

      (goto-char (point-min))
      (search-forward "= inform")
      (note 'definition
            (xref-location-line
             (xref-item-location
              (car (xref-backend-definitions 'eglot (xref-backend-identifier-at-point 'eglot))))))

      (goto-char (point-min))
      (search-forward "mul(")
      (let* ((found (eglot-completion-at-point))
             (table (nth 2 found)))
        (note 'completion (mapcar #'substring-no-properties
                                  (all-completions "" table (plist-get (nthcdr 3 found) :predicate)))))

      (note 'hints
            (mapcar (lambda (h) (plist-get h :label))
                    (append (eglot--request (eglot-current-server) :textDocument/inlayHint
                                            (list :textDocument (eglot--TextDocumentIdentifier)
                                                  :range (list :start (eglot--pos-to-lsp-position (point-min))
                                                               :end (eglot--pos-to-lsp-position (point-max)))))
                            nil)))
      (eglot-format-buffer)
      (note 'text (buffer-substring-no-properties (point-min) (point-max)))
      (set-buffer-modified-p nil)
      (eglot-shutdown (eglot-current-server)))
  (error (note 'error (format "%S" problem))))
(written)
(kill-emacs 0)
